// The savings calculator: sliders, and what they come to.

import { byId, el, say } from "./dom.js";
import { count, duration } from "./format.js";
import { prefixSavings } from "./savings_math.js";

// Sliders go by these steps, since what matters is how many times more.
const STEPS = [0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000];
const SLIDERS = [
  { name: "shared", title: "Tokens shared by all", most: 200000, value: 2000, unit: "tokens" },
  { name: "suffix", title: "Tokens of each one's own", most: 50000, value: 100, unit: "tokens" },
  { name: "requests", title: "Prompts", most: 1000000, value: 1000, unit: "prompts" },
  { name: "rate", title: "Prefill speed", most: 100000, value: 5000, unit: "tokens/s" },
];

export function showSavings() {
  const place = byId("savings-form");
  const answer = el("output", { class: "answer", for: SLIDERS.map((each) => each.name).join(" "), "aria-live": "polite" });
  const bar = el("div", { class: "stack wide", role: "img" }, el("i", { class: "part computed" }), el("i", { class: "part saved" }));
  const inputs = new Map();
  const update = () => {
    const values = Object.fromEntries([...inputs].map(([name, input]) => [name, STEPS[input.valueAsNumber]]));
    for (const each of SLIDERS) {
      const text = `${count(values[each.name])} ${each.unit}`;
      inputs.get(each.name).setAttribute("aria-valuetext", text);
      say(byId(`${each.name}-value`), text);
    }
    const saved = prefixSavings(values.shared, values.suffix, values.requests, values.rate);
    const percent = 100 * saved.share_saved;
    bar.children[0].style.width = `${100 - percent}%`;
    bar.children[1].style.width = `${percent}%`;
    bar.setAttribute("aria-label", `${percent.toFixed(1)} % of the tokens are saved`);
    say(answer, inWords(saved));
  };
  const sliders = SLIDERS.map((each) => {
    const input = el("input", {
      type: "range",
      id: each.name,
      min: 0,
      max: STEPS.indexOf(each.most),
      value: STEPS.indexOf(each.value),
      input: update,
    });
    inputs.set(each.name, input);
    return el(
      "div",
      { class: "slider" },
      el("label", { for: each.name }, each.title),
      el("span", { id: `${each.name}-value`, class: "value" }),
      input,
    );
  });
  place.append(
    el("div", { class: "sliders" }, sliders),
    el(
      "div",
      { class: "result" },
      answer,
      bar,
      el("p", { class: "quiet note" }, "The first prompt computes what all share, the others find it. A time to first token is at best as many times shorter; what else a request waits for is not in it."),
    ),
  );
  update();
}

function inWords(saved) {
  const bound = saved.speed_up_bound === null ? "no bound" : `at most ${saved.speed_up_bound.toFixed(1)} times less prefill`;
  const time = saved.seconds_saved === null ? "" : ` ${duration(saved.seconds_saved)} of prefill saved.`;
  return (
    `${count(saved.tokens_with)} tokens computed instead of ${count(saved.tokens_without)}: ` +
    `${(100 * saved.share_saved).toFixed(1)} % saved, ${bound}.${time}`
  );
}
