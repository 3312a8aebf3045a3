/** How the chat asks: model or skill, system prompt, temperature, effort, JSON schema. */

import { getJson } from "../api.js";
import { el, setHidden, setText } from "../dom.js";
import { clean } from "../format.js";
import { parseSchema } from "./conversation.js";

const WITHOUT_TEXT = ["embedding", "rerank"];

/** `load` asks for the models again; `problem`: why nothing can be sent, and the focus is where it can be mended. */
export function chatSettings(conversation) {
  const { settings } = conversation;
  const change = (name) => (event) => {
    settings[name] = event.target.value;
    conversation.saveSoon();
    check();
  };
  const model = el("select", { id: "model", on: { change: change("model") } }, el("option", { value: "" }, "Loading …"));
  const modelNote = el("p", { class: "hint", id: "model-note" });
  const system = el("textarea", { rows: "3", placeholder: "None", on: { input: change("system") } });
  const temperature = el("input", { type: "number", min: "0", max: "2", step: "0.1", placeholder: "Default", on: { input: change("temperature") } });
  const effort = el("select", { on: { change: change("effort") } },
    ...["", "none", "low", "medium", "high"].map((value) => el("option", { value }, value || "Default")));
  const schema = el("textarea", {
    rows: "4", class: "mono", spellcheck: "false", placeholder: '{"type": "object", …}', "aria-describedby": "schema-problem",
    on: { input: change("schema") },
  });
  const schemaProblem = el("p", { class: "field-problem", id: "schema-problem", role: "status" });
  for (const [name, field] of Object.entries({ system, temperature, effort, schema })) field.value = settings[name];

  const options = el(
    "details", { class: "options" }, el("summary", {}, "More settings"), label("System prompt", system),
    el("div", { class: "pair" }, label("Temperature", temperature), label("Effort", effort)),
    label("JSON schema of the answer", schema), schemaProblem,
  );
  options.open = matchMedia("(min-width: 1200px)").matches;
  const node = el("div", { class: "settings" }, label("Model or skill", model), modelNote, options);

  function check() {
    let found = null;
    try {
      parseSchema(schema.value);
    } catch (error) {
      found = `This is no JSON schema: ${error.message}`;
    }
    schema.setAttribute("aria-invalid", String(found !== null));
    setText(schemaProblem, found ?? "");
    return found;
  }

  async function load() {
    try {
      const { data } = await getJson("/v1/models");
      offer(model, data ?? [], settings);
      setText(modelNote, model.value ? "" : "No model that generates text is known yet.");
    } catch (error) {
      setText(modelNote, `The models are not known: ${error.message}`);
    }
    setHidden(modelNote, modelNote.textContent === "");
  }

  function problem() {
    if (!model.value) return focused(model, "No model can be asked yet.");
    if (!temperature.checkValidity()) return focused(temperature, "The temperature is a number from 0 to 2.");
    const found = check();
    return found && focused(schema, found);
  }

  function focused(field, text) {
    if (options.contains(field)) options.open = true;
    field.focus();
    return text;
  }
  check();
  return { node, load, problem };
}

function label(text, field) {
  return el("label", { class: "field" }, text, field);
}

/** Fill the select; a choice that is there again stays. */
function offer(select, models, settings) {
  const generate = models.filter(({ abilities }) => !abilities?.length || !abilities.every((each) => WITHOUT_TEXT.includes(each)));
  const skills = [...new Set(generate.flatMap(({ skills: named }) => named ?? []))].filter((name) => !WITHOUT_TEXT.includes(name) && name !== "embed").sort();
  const option = (name) => el("option", { value: name }, clean(name, 60));
  const groups = [["Skills", skills], ["Models", generate.map(({ id }) => id).filter((id) => !skills.includes(id))]];
  select.replaceChildren(...groups.filter(([, names]) => names.length).map(([name, names]) => el("optgroup", { label: name }, ...names.map(option))));
  const names = groups.flatMap(([, each]) => each);
  select.value = names.includes(settings.model) ? settings.model : (names[0] ?? "");
  settings.model = select.value;
}
