// Posts a body of so many MiB with Node's fetch, as one text or as a stream, and prints the status and the answer.
const [url, size, kind] = process.argv.slice(2);
const pieces = Number(size) * 16;
let sent = 0;
const stream = () =>
  new ReadableStream({
    pull(controller) {
      if (sent++ === pieces) controller.close();
      else controller.enqueue(new Uint8Array(65_536).fill(120));
    },
  });
const body = kind === "stream" ? stream() : "x".repeat(pieces * 65_536);
const headers = { "content-type": "application/json", accept: "application/json, text/event-stream" };
const answer = await fetch(url, { method: "POST", body, headers, duplex: "half" });
console.log(answer.status, await answer.text());
