"use strict";

const at = (id) => document.getElementById(id);
let running = null;

const headers = () => {
  const key = at("key").value;
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
};

async function* chunks(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    const events = held.split("\n\n");
    held = events.pop();
    for (const event of events) {
      if (event.startsWith(":")) continue;
      const data = event.replace(/^data: /, "");
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

function body(seed, speculative) {
  const asked = {
    prompt: at("prompt").value,
    max_tokens: Number(at("max_tokens").value),
    temperature: Number(at("temperature").value),
    seed,
    stream: true,
    stream_options: { include_usage: true },
    speculation_metrics: "detailed",
    speculative,
  };
  const prediction = at("prediction").value;
  if (prediction && speculative) asked.prediction = { type: "content", content: prediction };
  return JSON.stringify(asked);
}

async function lane(name, seed, speculative, signal) {
  const text = at(name).querySelector(".text");
  const speed = at(name).querySelector(".speed");
  const made = { text: "", rounds: [], tokens: 0, metrics: null };
  text.replaceChildren();
  speed.textContent = "waiting for the first token";
  const response = await fetch("v1/completions", {
    method: "POST", headers: headers(), body: body(seed, speculative), signal,
  });
  if (!response.ok) throw new Error(await refusal(response));
  let first = 0;
  for await (const chunk of chunks(response)) {
    if (chunk.error) throw new Error(chunk.error.message);
    if (chunk.metrics) made.metrics = chunk.metrics;
    const round = chunk.speculation;
    if (!round) continue;
    const now = performance.now();
    for (const token of round.tokens) {
      const span = document.createElement("span");
      span.textContent = token.text;
      span.className = `${token.origin} fresh`;
      span.title = `${token.origin}, round ${made.rounds.length + 1}, drafted by ${round.source}`;
      text.append(span);
      made.text += token.text;
    }
    made.tokens += round.tokens.length;
    made.rounds.push(round);
    if (!first) first = now;
    else {
      const seconds = (now - first) / 1000;
      const since = made.tokens - made.rounds[0].tokens.length;
      made.speed = since / seconds;
      speed.textContent = `${made.speed.toFixed(1)} tokens/s, ${made.tokens} tokens in ${made.rounds.length} rounds`;
    }
    text.scrollTop = text.scrollHeight;
    if (speculative) drawRounds(made.rounds);
  }
  return made;
}

async function refusal(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answered with status ${response.status}`;
  }
}

function drawRounds(rounds) {
  const shown = rounds.slice(-80);
  const most = Math.max(1, ...shown.map((round) => round.drafted));
  const bars = shown.map((round) => {
    const bar = document.createElement("i");
    bar.style.height = `${Math.max(3, (100 * round.drafted) / most)}%`;
    const kept = document.createElement("b");
    kept.style.height = round.drafted ? `${(100 * round.accepted) / round.drafted}%` : "0";
    bar.append(kept);
    bar.title = `${round.drafted} drafted by ${round.source} (depth ${round.depth}), ${round.accepted} accepted, ${round.round_ms.toFixed(1)} ms`;
    return bar;
  });
  at("rounds").replaceChildren(...bars);
  const drafted = rounds.reduce((sum, round) => sum + round.drafted, 0);
  const accepted = rounds.reduce((sum, round) => sum + round.accepted, 0);
  at("rounds").setAttribute("aria-label", `${rounds.length} rounds, ${drafted} tokens drafted, ${accepted} accepted, at most ${most} in a round`);
}

function drawPositions(shares) {
  const rows = shares.map((share, index) => {
    const row = document.createElement("tr");
    const place = document.createElement("th");
    place.scope = "row";
    place.textContent = index + 1;
    const meter = document.createElement("meter");
    meter.value = share;
    meter.setAttribute("aria-label", `position ${index + 1}`);
    const cell = document.createElement("td");
    cell.append(meter);
    const figure = document.createElement("td");
    figure.textContent = `${(100 * share).toFixed(0)}%`;
    row.append(place, cell, figure);
    return row;
  });
  at("positions").tBodies[0].replaceChildren(...rows);
}

function list(id, pairs) {
  at(id).replaceChildren(...pairs.flatMap(([name, value]) => {
    const term = document.createElement("dt");
    term.textContent = name;
    const said = document.createElement("dd");
    said.textContent = value;
    return [term, said];
  }));
}

const number = (value, digits = 2) => (value === null || value === undefined ? "none" : value.toFixed(digits));

function showRequest(made) {
  const found = made.metrics;
  if (!found) return;
  const own = found.speculative_decoding;
  drawPositions(own.per_position);
  list("request", [
    ["tokens/s", number(found.tokens_per_second, 1)],
    ["time to first token", `${number(found.time_to_first_token_ms, 0)} ms`],
    ["tokens a round", number(own.mean_acceptance_length)],
    ["drafted tokens accepted", own.num_draft_tokens ? `${(100 * own.draft_acceptance_rate).toFixed(0)}%` : "nothing drafted"],
    ["rounds", own.num_spec_steps],
    ["tokens drafted a round", number(own.num_draft_tokens / Math.max(1, own.num_spec_steps))],
  ]);
}

async function ask(event) {
  event.preventDefault();
  if (running) return;
  if (!at("prompt").value) {
    at("status").textContent = "write a prompt first";
    return;
  }
  running = new AbortController();
  at("go").disabled = true;
  at("stop").disabled = false;
  at("verdict").textContent = "";
  at("plain").querySelector(".text").replaceChildren();
  at("plain").querySelector(".speed").textContent = "\u00a0";
  const seed = at("seed").value === "" ? Math.floor(Math.random() * 2 ** 31) : Number(at("seed").value);
  try {
    at("status").textContent = "decoding speculatively";
    const fast = await lane("speculative", seed, true, running.signal);
    showRequest(fast);
    if (at("beside").checked) {
      at("status").textContent = "decoding plainly";
      const slow = await lane("plain", seed, false, running.signal);
      compare(fast, slow);
    }
    at("status").textContent = `done, seed ${seed}`;
  } catch (error) {
    for (const speed of document.querySelectorAll(".speed")) {
      if (speed.textContent.startsWith("waiting")) speed.textContent = "\u00a0";
    }
    at("status").textContent = error.name === "AbortError" ? "stopped" : error.message;
  } finally {
    running = null;
    at("go").disabled = false;
    at("stop").disabled = true;
  }
}

function compare(fast, slow) {
  const said = [];
  if (fast.speed && slow.speed) said.push(`${(fast.speed / slow.speed).toFixed(2)}x as fast as plain`);
  if (Number(at("temperature").value) === 0) said.push(fast.text === slow.text ? "identical output" : "the texts differ");
  at("verdict").textContent = said.join(", ");
}

async function poll() {
  try {
    const response = await fetch("v1/stats", { headers: headers() });
    if (!response.ok) throw new Error(await refusal(response));
    const found = await response.json();
    at("model").textContent = `${found.model} on ${found.runtime}, drafting by ${found.drafter}`;
    list("server", [
      ["running", found.running],
      ["waiting", found.waiting],
      ["tokens emitted", found.emitted],
      ["tokens/s in rounds", number(found.tokens_per_s, 1)],
      ["tokens a round", number(found.acceptance_length)],
      ["drafted tokens accepted", found.acceptance_rate === null ? "nothing drafted" : `${(100 * found.acceptance_rate).toFixed(0)}%`],
    ]);
  } catch (error) {
    at("model").textContent = error.message;
  }
}

at("ask").addEventListener("submit", ask);
at("stop").addEventListener("click", () => running && running.abort());
at("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) at("ask").requestSubmit();
});
poll();
setInterval(poll, 1000);
