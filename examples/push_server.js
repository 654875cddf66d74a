// An application behind `lbg sidecar`: LBG_APP=http LBG_TARGET=http://127.0.0.1:8080/ and `node push_server.js 8080`
const http = require("node:http");

async function handle(key, order) {
  console.log(key, order);
}

http.createServer(async (request, response) => {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  const key = decodeURIComponent(request.headers["ce-partitionkey"] ?? "");
  try {
    await handle(key, Buffer.concat(chunks).toString());
    response.writeHead(204).end();  // done
  } catch (error) {
    response.writeHead(503, { "Retry-After": "2" }).end(String(error));  // again in 2 s, and nothing of its key before
  }
}).listen(Number(process.argv[2] ?? 8080), "127.0.0.1");
