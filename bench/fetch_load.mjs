// Load of Node's fetch: `fetch_load.mjs URL PLAN SECONDS`. Each session of the plan has one call in flight, with another
// id and another length each time, as clients send them. Prints what wrk's script prints.
import { readFileSync } from "node:fs";

const [url, file, seconds] = process.argv.slice(2);
const plan = JSON.parse(readFileSync(file, "utf8"));
const times = [];
let errors = 0;

const until = performance.now() + Number(seconds) * 1000;
const began = performance.now();

async function lap({ headers, body }) {
  for (let id = 1; performance.now() < until; id++) {
    body.id = id;
    body.params.arguments.text = "x".repeat(id % 50);
    const sent = performance.now();
    try {
      const answer = await fetch(url, { method: "POST", headers, body: JSON.stringify(body) });
      const text = await answer.text();
      if (!answer.ok || !text.includes('"result"')) errors++;
    } catch {
      errors++;
    }
    times.push(performance.now() - sent);
  }
}

await Promise.all(plan.map(lap));
const took = performance.now() - began;
times.sort((a, b) => a - b);
const at = (share) => Math.round(1000 * (times[Math.min(times.length - 1, Math.floor(times.length * share))] ?? 0));
const found = { requests: times.length, duration_us: Math.round(took * 1000), errors, p50_us: at(0.5), p99_us: at(0.99) };
console.log(`RESULT ${JSON.stringify(found)}`);
