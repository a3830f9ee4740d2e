// The address of the page says what is shown: `#/encoder.layer.0`, `#/encoder.layer.0?call=2`, `#/…?node=linear_3`.
// On the page of a package it says of which file: `#/encoder.layer.0?component=decoder`.

function readRoute(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const asked = new URLSearchParams(query);
  const call = Number(asked.get("call"));
  return {
    path: decoded(path),
    call: Number.isInteger(call) && call > 0 ? call : 0,
    node: asked.get("node"),
    component: asked.get("component"),
  };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** The address of a module, of a later call of it, or of a node in it. */
function address(model, place, { call = 0, node = null, component = model.component } = {}) {
  const asked = new URLSearchParams();
  if (component) asked.set("component", component);
  if (call) asked.set("call", call);
  if (node !== null) asked.set("node", model.text(model.data.nodes.key[node]));
  const query = asked.toString();
  const path = place === model.nobody ? NOBODY : model.paths[place];
  return `#/${encodeURIComponent(path)}${query ? `?${query}` : ""}`;
}

// No module can have this path: a path has no empty steps.
const NOBODY = "..";

/** What an address stands for in this model; `missing` is what it names and the model does not have. */
function resolveRoute(model, hash) {
  const route = readRoute(hash);
  const node = route.node === null || !model.nodeByKey.has(route.node) ? null : model.nodeByKey.get(route.node);
  if (node !== null) return { place: model.answer(node).around, call: model.answer(node).call, node, missing: "" };
  const missing = route.node !== null ? `node ${route.node}` : "";
  if (route.path === NOBODY && model.hasNobody && !model.byPath.has(NOBODY)) return { place: model.nobody, call: 0, node, missing };
  let path = route.path;
  while (path && !model.byPath.has(path)) path = path.includes(".") ? path.slice(0, path.lastIndexOf(".")) : "";
  const found = model.byPath.get(path) ?? ROOT;
  const lost = path === route.path ? missing : `module ${route.path}`;
  return { place: found, call: path === route.path ? route.call : 0, node, missing: printable(lost) };
}
