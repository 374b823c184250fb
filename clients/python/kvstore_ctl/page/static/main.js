// Asks the server again and again, and hands what it says to the parts of the page.

import { NoAnswer, Refused, ask } from "./api.js";
import { byId, say } from "./dom.js";
import { showFigures } from "./figures.js";
import { clock, duration } from "./format.js";
import { Leases, Namespaces } from "./lists.js";
import { Samples } from "./rates.js";
import { Reuse } from "./reuse.js";
import { showSavings } from "./savings.js";
import { showTiers } from "./tiers.js";
import { Tree } from "./tree.js";

const EVERY = 1000;
// Rounds between two looks at what costs the server more.
const SLOW_EVERY = 4;

const samples = new Samples();
const reuse = new Reuse();
const tree = new Tree();
const leases = new Leases();
const namespaces = new Namespaces();
let epoch = null;
let heard = null;
let round = 0;
let version = null;

function begin(state) {
  if (epoch === state.epoch) return;
  epoch = state.epoch;
  samples.clear();
  tree.clear();
  round = 0;
}

async function look() {
  const state = await ask("api/state");
  version ??= state.version;
  if (version !== state.version) {
    // A server of another version has another page.
    location.reload();
    return;
  }
  begin(state);
  samples.add(await ask("api/history", { after: Math.max(Math.floor(samples.newest), 0) }));
  show(state);
  if (round % SLOW_EVERY === 0) await Promise.all([tree.refresh(), leases.refresh()]);
  round += 1;
}

function show(state) {
  const tokens = state.shows_tokens ? ", shows tokens of prompts" : "";
  say(byId("whoami"), `version ${state.version}, up ${duration(state.uptime)}${tokens}`);
  byId("whoami").title = `epoch ${state.epoch}`;
  showFigures(state, samples);
  showTiers(state.tiers);
  reuse.show(samples, state.uptime);
  tree.offer(state.namespaces);
  leases.show(state.leases, state.left_out.leases, state.namespaces);
  namespaces.show(state);
}

function stale() {
  const banner = byId("stale");
  const since = heard === null ? "The store has not answered yet" : `No answer from the store since ${clock(heard)}`;
  say(banner, `${since}. ${heard === null ? "" : "What is shown is what it said then. "}Asking again, until it answers.`);
  banner.hidden = false;
  document.body.classList.add("is-stale");
}

function fresh() {
  heard = new Date();
  byId("stale").hidden = true;
  document.body.classList.remove("is-stale");
}

async function run() {
  try {
    await look();
    fresh();
  } catch (error) {
    if (!(error instanceof NoAnswer || error instanceof Refused)) throw error;
    stale();
  } finally {
    // Nobody looks at a page that is not shown.
    if (document.hidden) document.addEventListener("visibilitychange", run, { once: true });
    else setTimeout(run, EVERY);
  }
}

showSavings();
run();
