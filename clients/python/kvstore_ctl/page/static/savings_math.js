// The prefix savings calculator; the same as kvstore-ctl's, and held to the same examples.
//
// Of `requests` prompts that begin with the same `shared` tokens and go on with `suffix` of their
// own, the first computes what they share and the others find it. Speeds are tokens a second.
export function prefixSavings(shared, suffix, requests, prefillRate = 0) {
  const without = requests * (shared + suffix);
  const computed = requests === 0 ? 0 : shared + requests * suffix;
  const saved = without - computed;
  return {
    tokens_without: without,
    tokens_with: computed,
    tokens_saved: saved,
    share_saved: without > 0 ? saved / without : 0,
    speed_up_bound: without === 0 ? 1 : computed > 0 ? without / computed : null,
    seconds_saved: prefillRate > 0 ? saved / prefillRate : null,
  };
}
