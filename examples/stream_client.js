// An application beside `lbg sidecar` with LBG_APP=stream: `node stream_client.js ws://127.0.0.1:8750/v1/stream`
const WebSocket = globalThis.WebSocket ?? require("ws");  // before Node 22: npm install ws

async function handle(message) {
  const data = message.data ?? Buffer.from(message.data_base64, "base64");  // base64: not text
  console.log(message.key, data);  // key: null without one
}

function connect(url) {
  const socket = new WebSocket(url, "lbg.stream.v1");
  socket.onopen = () => socket.send(JSON.stringify({ hello: { credit: 256 } }));
  socket.onmessage = ({ data }) => {
    const { first, messages = [] } = JSON.parse(data);
    messages.forEach(async (message, index) => {
      let answer = { acks: [first + index] };
      try {
        await handle(message);
      } catch (error) {
        answer = { verdicts: [{ n: first + index, verdict: "retry", reason: String(error) }] };
      }
      // What was cancelled meanwhile is finished and answered all the same: good enough for short work.
      if (socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify(answer));
    });
  };
  socket.onerror = () => {};  // a close follows
  socket.onclose = () => setTimeout(connect, 100, url);
}

connect(process.argv[2] ?? "ws://127.0.0.1:8750/v1/stream");
