// The tools that every task in Node has: they work in the folder where it runs.

import { execSync } from "node:child_process";
import { writeFileSync } from "node:fs";

export const TASK = "TASK: write the answer into a file, then copy it.";

export const functions = {
  write_file({ path, content }) {
    writeFileSync(path, content);
    return `${path} is written`;
  },
  run_command({ command }) {
    return execSync(command, { encoding: "utf8" });
  },
};

const text = { type: "string" };

export const schemas = {
  write_file: {
    type: "object",
    properties: { path: text, content: text },
    required: ["path", "content"],
    additionalProperties: false,
  },
  run_command: {
    type: "object",
    properties: { command: text },
    required: ["command"],
    additionalProperties: false,
  },
};
