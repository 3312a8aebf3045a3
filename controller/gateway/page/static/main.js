/** The page: routes, the connection, and which view shows what. */

import { Chat } from "./chat/chat.js";
import { ClusterConnection } from "./connection.js";
import { confirmed } from "./dialog.js";
import { el, inFrames, setAttribute, setHidden, setText } from "./dom.js";
import { clean, count } from "./format.js";
import { storedKey, storeKey } from "./key.js";
import { WHY_NO_ORDERS } from "./orders.js";
import { connectionNotice, overviewBand } from "./overview.js";
import { Store } from "./store.js";
import { initTheme } from "./theme.js";
import { controllersView } from "./views/controllers.js";
import { logView } from "./views/log.js";
import { machinesView } from "./views/machines.js";
import { modelsView } from "./views/models.js";
import { requestsView } from "./views/requests.js";
import { rolloutView } from "./views/rollout.js";
import { sessionsView } from "./views/sessions.js";

/** Each route with its view's maker, and the views of the stream that it shows. */
const ROUTES = {
  machines: [machinesView, ["machines"]], models: [modelsView, ["models"]], requests: [requestsView, ["requests"]],
  sessions: [sessionsView, ["sessions"]], controllers: [controllersView, []], rollout: [rolloutView, ["rollout"]],
  log: [logView, ["log"]],
};
const byId = (id) => document.getElementById(id);
const links = () => byId("navigation").querySelectorAll("a");

const store = new Store();
const chat = new Chat(store, () => watch());
const band = overviewBand(store);
const connection = new ClusterConnection({
  accept, showStatus, begin: () => store.begin(), forget: () => (store.session = null),
  known: () => store.session !== null, seen: (view) => store.maySee(view),
});
const notice = connectionNotice(connection);
let route = null;
let view = null;

function accept(name, data) {
  const rights = store.session?.rights;
  store.accept(name, data);
  if (name === "session") {
    if (rights !== data.rights) open(route, false); // its buttons depend on the rights
    showRights();
  } else if (name === "overview") {
    band.render();
    if (route === "controllers") view.render();
    showCounts();
  } else {
    if (name === route) view.render();
    if (name === "requests") chat.follow();
  }
}

function showStatus(status) {
  notice.show(status);
  setText(byId("status"), { live: "Live", lost: "Connection lost" }[status.state] ?? clean(status.text, 120));
  setAttribute(byId("status"), "data-tone", { live: "good", connecting: "busy" }[status.state] ?? "bad");
}

/** Offer what the caller may see, and say why there are no orders. */
function showRights() {
  const { session } = store;
  for (const link of links()) setHidden(link.parentElement, !allowed(link.hash.slice(1)));
  setHidden(band.node, !store.maySee("overview") || session.rights === "own");
  setHidden(byId("rights"), session.rights !== "read" || !["models", "requests", "sessions", "rollout"].includes(route));
  setText(byId("rights"), WHY_NO_ORDERS);
  setText(byId("who"), session.rights === "read" ? "no key" : clean(session.client, 30));
  setText(byId("version"), clean(session.version, 30));
  setHidden(byId("sign-out"), storedKey() === null);
}

const showCounts = inFrames(() => {
  const { overview } = store;
  setText(byId("count-machines"), count(overview.workers));
  setText(byId("count-requests"), count(overview.running + overview.queued + overview.waiting));
});
/** Without a session everything may be tried. */
function allowed(name) {
  if (name === "chat") return true;
  if (store.session?.rights === "own") return name === "requests";
  return Object.hasOwn(ROUTES, name) && (ROUTES[name][1].every((each) => store.maySee(each)) || store.session === null);
}
function watch() {
  const views = route === "chat" ? [] : ROUTES[route][1];
  connection.watch(["overview", ...views, ...(chat.answers ? ["requests"] : [])]);
}

/** @param {string} name of a route @param {boolean} moves whether the focus goes to its heading */
function open(name, moves = true) {
  route = allowed(name) ? name : store.session?.rights === "own" ? "chat" : "machines";
  view = route === "chat" ? chat : ROUTES[route][0](store);
  document.title = `${view.title} · MLX cluster`;
  document.body.dataset.route = route;
  setText(byId("title"), view.title);
  byId("view").replaceChildren(view.node);
  const side = byId("navigation").parentElement; // on a phone it scrolls; scrollIntoView would move where Tab begins
  for (const link of links()) {
    setAttribute(link, "aria-current", link.hash === `#${route}` ? "page" : null);
    if (link.hash === `#${route}`) side.scrollLeft = link.offsetLeft + (link.clientWidth - side.clientWidth) / 2;
  }
  if (moves) byId("title").focus({ preventScroll: true });
  byId("main").scrollTop = 0;
  if (store.session) showRights();
  if (route === "chat") chat.open();
  else view.render();
  watch();
}

async function signOut() {
  const text = "The key and the conversation are removed from this browser.";
  if (!(await confirmed({ title: "Sign out?", text, action: "Sign out" }))) return;
  chat.stop();
  chat.conversation.forget();
  storeKey(null);
  location.reload();
}

const wanted = () => location.hash.slice(1) || (store.session?.rights === "own" ? "chat" : "machines");

initTheme(byId("theme"));
byId("notices").append(notice.node, el("p", { id: "rights", class: "rights", hidden: true }));
byId("overview").append(band.node);
byId("sign-out").addEventListener("click", signOut);
byId("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the hash belongs to the routes
  byId("title").focus();
});
window.addEventListener("hashchange", () => open(wanted()));
open(wanted(), false);
