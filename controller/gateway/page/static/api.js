/** Requests to the gateway, with the key if there is one. */

import { storedKey } from "./key.js";

/** What the gateway answered instead of what was asked for. */
export class ApiError extends Error {
  /** @param {string} message @param {number} status 0: the gateway was not reached */
  constructor(message, status, code = null) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** @throws {ApiError} for every status but 2xx, and without a connection; AbortError stays as it is */
export async function send(path, options = {}) {
  const headers = new Headers(options.headers);
  const key = storedKey();
  if (key !== null) headers.set("authorization", `Bearer ${key}`);
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit", redirect: "error" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The gateway cannot be reached.", 0);
  }
  if (response.ok) return response;
  throw await errorOf(response);
}

async function errorOf(response) {
  const { status } = response;
  let body = null;
  try {
    body = (await response.json()).error;
  } catch {
    // a proxy's page, or nothing
  }
  return new ApiError(String(body?.message ?? `The gateway answered with status ${status}.`), status, body?.code ?? null);
}

export async function getJson(path) {
  return (await send(path)).json();
}
/** @param {RequestInit} [options] */
export function postJson(path, body, options = {}) {
  const headers = { "content-type": "application/json" };
  return send(path, { ...options, method: "POST", headers, body: JSON.stringify(body) });
}
