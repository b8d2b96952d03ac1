// The page: what the reader types and presses, and what the server answers.

import { Player } from "./player.js";
import { Take, drawOutline } from "./take.js";

const $ = (id) => document.getElementById(id);

/** Takes are kept while their audio fits in here; the oldest go first. */
const KEPT_BYTES = 128 * 2 ** 20;
const SERVER_POLL_MS = 3000;
const KEY_NAME = "hocket-api-key";
/** Recordings end by themselves: references longer than this are refused by the server. */
const MAX_RECORDING_MS = 30_000;

/** Fields of a speech request that are sent when they are filled in. */
const TEXT_FIELDS = ["language", "instructions", "seed"];
const NUMBER_FIELDS = ["temperature", "top_p", "top_k", "repetition_penalty", "max_new_tokens"];
/** Request fields whose form element has another name. */
const FIELD_OF_PARAM = { input: "text", audio: "file", audio_sample: "file", ref_text: "transcript", reference_text: "transcript" };

/** While in one of these, something is on its way to the ear. */
const ACTIVE = new Set(["waiting", "speaking", "playing"]);

let state = "idle";
let takes = [];
let current = null;
/** Aborts the speech request that is open, if one is. */
let request = null;
let recorder = null;
/** The voice to be uploaded: a recording, or a file of the reader's. */
let sample = null;
const player = new Player(() => enter("finished"));

// ---- talking to the server

class ServerError extends Error {
  constructor(message, status, param) {
    super(message);
    this.status = status;
    this.param = param;
  }
}

async function call(path, options = {}) {
  const key = $("key").value;
  const headers = { ...options.headers, ...(key && { Authorization: `Bearer ${key}` }) };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server cannot be reached. Is it running?", 0, null);
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  throw new ServerError(body?.error?.message ?? `The server answered ${response.status}.`, response.status, body?.error?.param);
}

const callJson = async (path, options) => (await call(path, options)).json();

function postSpeech({ seed, ...fields }, response_format, signal) {
  // Seeds go up to 2**63 - 1, beyond JavaScript's numbers, so their digits are put in as they are.
  const rest = JSON.stringify({ ...fields, response_format });
  const body = seed ? `{"seed":${seed},${rest.slice(1)}` : rest;
  return call("v1/audio/speech", { method: "POST", headers: { "Content-Type": "application/json" }, body, signal });
}

// ---- what is shown

function showError(error) {
  $("alert-text").textContent = error.message;
  $("alert").hidden = false;
  const field = $(error.status === 401 ? "key" : (FIELD_OF_PARAM[error.param] ?? error.param));
  if (!field) return;
  field.setAttribute("aria-invalid", "true");
  field.closest("details")?.setAttribute("open", "");
  field.focus();
}

function clearError() {
  $("alert").hidden = true;
  for (const field of document.querySelectorAll("[aria-invalid]")) field.removeAttribute("aria-invalid");
}

/** Run what a button asks for; what goes wrong is shown. */
const guarded = (action) => async (event) => {
  clearError();
  try {
    await action(event);
  } catch (error) {
    showError(error);
  }
};

function announce(words) {
  $("announce").textContent = words;
}

/** Change the state, which is shown and said aloud. */
function enter(next) {
  state = next;
  $("state").textContent = next;
  $("stop").disabled = !ACTIVE.has(next);
  announce(next === "finished" ? `finished, ${current.seconds.toFixed(1)} seconds` : next);
  render();
}

const quantity = (value, digits, unit = "") => (value === null ? "–" : `${value.toFixed(digits)} ${unit}`);

function render() {
  $("first").textContent = quantity(current.firstMs, 0, "ms");
  $("rtf").textContent = quantity(current.rtf, 2);
  $("buffer").textContent = quantity(player.playing ? player.bufferSeconds : null, 1, "s");
  $("underruns").textContent = current.frames ? player.underruns : "–";
  $("length").textContent = quantity(current.frames ? current.seconds : null, 1, "s");
  $("seed-used").textContent = current.seed || "–";
  $("seed-used").disabled = !current.seed;
  const incomplete = current.frames === 0 || state === "waiting" || state === "speaking";
  for (const button of document.querySelectorAll("[data-format]")) button.disabled = incomplete;
  const level = Math.round(100 * player.level);
  $("meter").setAttribute("aria-valuenow", level);
  $("meter-fill").style.transform = `scaleX(${level / 100})`;
  drawWave();
}

function drawWave() {
  drawOutline($("wave"), current?.outline ?? [], current?.seconds ? player.position / current.seconds : 0);
}

/** Draw while something moves; four times a second where motion is unwelcome. */
function animate() {
  if (!ACTIVE.has(state)) return;
  render();
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) setTimeout(animate, 250);
  else requestAnimationFrame(animate);
}

// ---- speaking

function speechFields() {
  const fields = { input: $("text").value, voice: $("voice").value };
  for (const name of TEXT_FIELDS) if ($(name).value.trim()) fields[name] = $(name).value.trim();
  for (const name of NUMBER_FIELDS) if ($(name).value) fields[name] = Number($(name).value);
  return fields;
}

async function speak() {
  stop();
  clearError();
  player.unlock();
  const take = new Take(speechFields());
  const mine = (request = new AbortController());
  show(take);
  enter("waiting");
  animate();
  try {
    await receive(take, mine.signal);
    enter("playing");
    player.finish();
  } catch (error) {
    if (error.name !== "AbortError") {
      player.stop();
      enter("failed");
      showError(error);
    }
  } finally {
    if (take.frames) keep(take);
    if (request === mine) request = null;
  }
}

/** Ask for the take and play it as it comes. */
async function receive(take, signal) {
  const asked = performance.now();
  const response = await postSpeech(take.fields, "pcm", signal);
  take.describe(response.headers);
  player.begin(take.sampleRate);
  const reader = response.body.getReader();
  for (;;) {
    const { done, value } = await reader.read().catch((error) => {
      throw error.name === "AbortError" ? error : new ServerError("The audio broke off. Try again.", 0, null);
    });
    if (done) return;
    const pcm = take.append(value);
    if (take.firstMs === null) {
      take.firstMs = performance.now() - asked;
      enter("speaking");
    }
    player.push(pcm, take.channels);
    take.rtf = (performance.now() - asked) / 1000 / take.seconds;
  }
}

function stop() {
  request?.abort();
  request = null;
  player.stop();
  if (ACTIVE.has(state)) enter("stopped");
}

function replay(take) {
  stop();
  clearError();
  player.unlock();
  show(take);
  player.begin(take.sampleRate);
  for (const piece of take.pieces) player.push(piece, take.channels);
  enter("playing");
  player.finish();
  animate();
}

// ---- takes

function show(take) {
  current = take;
  $("wave").setAttribute("aria-label", `Waveform of: ${take.fields.input}`);
  markCurrentTake();
}

function keep(take) {
  let bytes = 0;
  takes = [take, ...takes].filter((kept) => (bytes += kept.bytes) <= KEPT_BYTES || kept === take);
  $("takes-empty").hidden = true;
  $("takes").replaceChildren(...takes.map(takeItem));
  markCurrentTake();
}

function markCurrentTake() {
  [...$("takes").children].forEach((item, i) => item.setAttribute("aria-current", takes[i] === current));
}

function takeItem(take) {
  const facts = `${take.fields.voice} · ${take.seconds.toFixed(1)} s`;
  return listItem(take.fields.input, facts, button("Play", `Play the take: ${take.fields.input}`, () => replay(take)));
}

function listItem(title, facts, ...buttons) {
  const words = element("div", { className: "what" });
  words.append(element("b", { textContent: title }), element("span", { className: "hint", textContent: facts }));
  const item = element("li");
  item.append(words, ...buttons);
  return item;
}

function button(textContent, ariaLabel, action) {
  return element("button", { type: "button", textContent, ariaLabel, onclick: guarded(action) });
}

const element = (tag, properties = {}) => Object.assign(document.createElement(tag), properties);

/** WAV is what was heard; for the other formats the server speaks the take again, from its seed. */
async function download(format) {
  const take = current;
  const blob = format === "wav" ? take.wav() : await (await postSpeech({ ...take.fields, seed: take.seed }, format)).blob();
  const link = element("a", { href: URL.createObjectURL(blob), download: `hocket-${take.seed}.${format}` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  announce(`${format} is ready`);
}

// ---- voices

async function loadVoices(choice = $("voice").value) {
  const { voices } = await callJson("v1/audio/voices");
  const names = voices.map((voice) => voice.name);
  $("voice").replaceChildren(...names.map((name) => element("option", { value: name, textContent: name })));
  $("voice").value = names.includes(choice) ? choice : names[0];
  $("voices").replaceChildren(...voices.map(voiceItem));
}

function voiceItem({ name, builtin, kind, problem, seconds, preview, speaker_description }) {
  const buttons = [];
  if (preview) buttons.push(button("Hear", `Hear the recording of the voice ${name}`, () => hear(name)));
  if (!builtin) buttons.push(button("Delete", `Delete the voice ${name}`, () => remove(name)));
  const facts = [builtin ? "built in" : kind, seconds && `${seconds.toFixed(1)} s`, speaker_description, problem];
  return listItem(name, facts.filter(Boolean).join(" · "), ...buttons);
}

const voicePath = (name) => `v1/audio/voices/${encodeURIComponent(name)}`;

async function hear(name) {
  stop();
  const blob = await (await call(`${voicePath(name)}/preview`)).blob();
  const audio = new Audio(URL.createObjectURL(blob));
  audio.onended = () => URL.revokeObjectURL(audio.src);
  await audio.play();
}

async function remove(name) {
  if (!confirm(`Delete the voice ${name}? Its recording is lost.`)) return;
  await call(voicePath(name), { method: "DELETE" });
  await loadVoices();
  announce(`the voice ${name} is deleted`);
}

async function toggleRecording() {
  if (recorder) return recorder.stop();
  if (!navigator.mediaDevices) throw new Error("This browser records on https and localhost only. Choose a file instead.");
  const stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1, echoCancellation: false } }).catch(() => {
    throw new Error("The microphone cannot be used. Allow it in the browser, or choose a file instead.");
  });
  const parts = [];
  recorder = new MediaRecorder(stream);
  recorder.ondataavailable = ({ data }) => parts.push(data);
  recorder.onstop = () => {
    for (const track of stream.getTracks()) track.stop();
    clearTimeout(limit);
    useSample(new Blob(parts, { type: recorder.mimeType }));
    recorder = null;
    showRecording();
  };
  const limit = setTimeout(() => recorder.stop(), MAX_RECORDING_MS);
  recorder.start();
  showRecording();
}

function showRecording() {
  $("record").textContent = recorder ? "Stop recording" : "Record";
  $("record").setAttribute("aria-pressed", recorder !== null);
  announce(recorder ? "recording" : "recorded");
}

/** Take `blob` for the voice's recording, and let the reader hear it. */
function useSample(blob) {
  URL.revokeObjectURL($("sample").src);
  sample = blob;
  $("sample").src = URL.createObjectURL(blob);
  $("sample").hidden = false;
}

async function uploadVoice() {
  if (!sample) throw new ServerError("Record the voice, or choose a file with it.", 0, "audio_sample");
  const form = new FormData();
  form.append("audio_sample", sample, sample.name ?? "recording");
  form.append("name", $("name").value.trim());
  if ($("transcript").value.trim()) form.append("ref_text", $("transcript").value.trim());
  $("save").disabled = true;
  const { voice } = await callJson("v1/audio/voices", { method: "POST", body: form }).finally(() => {
    $("save").disabled = false;
  });
  $("upload").reset();
  $("sample").hidden = true;
  sample = null;
  await loadVoices(voice.name);
  announce(`the voice ${voice.name} is saved and chosen`);
}

// ---- the server's load

async function watchServer() {
  if (!document.hidden) await showServer();
  setTimeout(watchServer, SERVER_POLL_MS);
}

async function showServer() {
  const [words, look] = await serverLoad().catch(() => ["server unreachable", "down"]);
  $("server-text").textContent = words;
  $("server-dot").dataset.state = look;
}

/** What the server's metrics say of its load, in words, and how that looks. */
async function serverLoad() {
  const page = await (await call("metrics")).text();
  const lines = (name) => [...page.matchAll(new RegExp(`^hocket_engine{name="${name}",worker="\\d+"} (.*)$`, "gm"))];
  const gauge = (name) => lines(name).reduce((sum, [, value]) => sum + Number(value), 0);
  if (!/^hocket_ready 1/m.test(page)) return ["server not ready", "down"];
  const speaking = gauge("rows_running") + gauge("rows_prefilling");
  const waiting = gauge("rows_waiting");
  return [`${speaking} of ${speaking + gauge("rows_free")} speaking · ${waiting} waiting`, waiting ? "busy" : "ready"];
}

async function useKey() {
  sessionStorage.setItem(KEY_NAME, $("key").value);
  await loadVoices();
  $("key-panel").open = false;
  announce("the key is accepted");
}

// ---- wiring

function onKey(event) {
  if (event.key === "Escape" && ACTIVE.has(state)) stop();
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !$("upload").contains(event.target)) $("compose").requestSubmit();
}

function showCount() {
  const count = [...$("text").value].length;
  $("count").textContent = `${count} character${count === 1 ? "" : "s"}`;
}

function wire() {
  const form = (id, action) => ($(id).onsubmit = (event) => {
    event.preventDefault();
    guarded(action)();
  });
  form("compose", speak);
  form("upload", uploadVoice);
  form("key-form", useKey);
  $("stop").onclick = stop;
  $("text").oninput = showCount;
  $("alert-close").onclick = clearError;
  $("seed-used").onclick = () => {
    $("seed").value = current.seed;
    announce(`seed ${current.seed} is set`);
  };
  for (const control of document.querySelectorAll("[data-format]")) control.onclick = guarded(() => download(control.dataset.format));
  $("record").onclick = guarded(toggleRecording);
  $("file").onchange = () => $("file").files[0] && useSample($("file").files[0]);
  document.addEventListener("keydown", onKey);
  document.addEventListener("visibilitychange", () => document.hidden || showServer());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawWave);
  new ResizeObserver(drawWave).observe($("wave"));
}

$("key").value = sessionStorage.getItem(KEY_NAME) ?? "";
wire();
showCount();
watchServer();
guarded(() => loadVoices())();
