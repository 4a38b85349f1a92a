// Asks a daemon with an unmodified ioredis, and prints every reply as a line of JSON.
const Redis = require("ioredis");

const [port, password] = process.argv.slice(2);
const show = (reply) => console.log(JSON.stringify(reply));

(async () => {
  const client = new Redis({ port: Number(port), password });
  show((await client.ping()) === "PONG");
  for (let time = 0; time < 3; time++) {
    show(await client.call("CL.THROTTLE", "node", 1, 30, 60, 1));
  }
  const pipeline = client.pipeline();
  for (let time = 0; time < 3; time++) {
    pipeline.call("TG.CHECK", "site", "api_key", "node");
  }
  for (const [error, reply] of await pipeline.exec()) {
    show(error ?? reply);
  }
  await client.quit();

  const stranger = new Redis({ port: Number(port), password: "wrong", retryStrategy: null });
  stranger.on("error", () => {});
  show(await stranger.ping().catch(() => "refused"));
  stranger.disconnect();
})();
