// What the server answers, as values; every question has an end.

const PATIENCE = 4000;

export class NoAnswer extends Error {}

export class Refused extends Error {
  constructor(status) {
    super(`refused with ${status}`);
    this.status = status;
  }
}

export async function ask(path, fields = {}) {
  const query = new URLSearchParams(fields).toString();
  let response;
  let value;
  try {
    response = await fetch(query ? `${path}?${query}` : path, {
      signal: AbortSignal.timeout(PATIENCE),
      credentials: "omit",
      cache: "no-store",
    });
    value = response.ok ? await response.json() : null;
  } catch (error) {
    throw new NoAnswer(String(error));
  }
  if (response.status >= 500) throw new NoAnswer(`the server says ${response.status}`);
  if (!response.ok) throw new Refused(response.status);
  return value;
}
