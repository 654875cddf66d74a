// The round trip of test_round_trips.py with amqplib: node amqplib_round_trip.js URL QUEUE MESSAGES PREFETCH
const amqplib = require("amqplib");
const [url, name, count, prefetch] = process.argv.slice(2);
const messages = Number(count);

async function main() {
  const connection = await amqplib.connect(url);
  const dead = `${name}.dead`;
  const channel = await connection.createConfirmChannel();
  await channel.assertQueue(dead, { durable: true });
  await channel.assertQueue(name, {
    durable: true,
    deadLetterExchange: "",
    deadLetterRoutingKey: dead,
    expires: 60000,
    messageTtl: 60000,
  });
  for (let number = 0; number < messages; number++) {
    channel.sendToQueue(name, Buffer.from(String(number)), { persistent: true, mandatory: true });
  }
  await channel.waitForConfirms();
  await channel.prefetch(Number(prefetch));
  const got = [];
  await new Promise((resolve, reject) => {
    channel.consume(name, (message) => {
      if (message === null) return reject(new Error("cancelled"));
      got.push(message.content.toString());
      if (got.length < messages) return channel.ack(message);
      channel.reject(message, false);
      resolve();
    });
  });
  const letter = await channel.get(dead, { noAck: true });
  const other = await connection.createChannel();
  const refused = new Promise((resolve) => other.on("error", (error) => resolve(error.code)));
  other.checkQueue(`${name}.none`).catch(() => {});
  console.log(JSON.stringify({ got, letter: letter.content.toString(), code: await refused }));
  await connection.close();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
