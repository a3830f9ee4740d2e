// What the page knows, unpacked from the data that the file carries.

const CONFIDENCES = ["none", "fallback", "inferred", "strong", "exact"];
const ROOT = 0;

/** Gunzip what `page.html` holds in base64. Nothing is fetched. */
async function unpacked(base64) {
  const marks = atob(base64.trim());
  const bytes = new Uint8Array(marks.length);
  for (let at = 0; at < marks.length; at += 1) bytes[at] = marks.charCodeAt(at);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const chunks = [];
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  for (let part = await reader.read(); !part.done; part = await reader.read()) chunks.push(part.value);
  return JSON.parse(chunks.join(""));
}

/** Of a package, the file that the address asks for, or the first one; a file is its own and only choice. */
function chooseComponent(content, asked) {
  if (!content.components) return { data: content, component: "", components: [] };
  const components = content.components.map((file) => file.name);
  const { name, data } = content.components[Math.max(0, components.indexOf(asked))];
  return { data, component: name, components };
}

class Model {
  constructor({ data, component, components }) {
    this.data = data;
    this.component = component;
    this.components = components;
    this.texts = data.texts;
    this.modules = data.modules;
    this.count = data.modules.parent.length;
    this.nobody = this.count;
    this.hasNobody = data.modules.nodes[this.nobody] > 0;
    this.hasNodes = data.nodes !== null;
    this._grow();
    this._place();
    this.measures = this._measures();
  }

  /** Children of every module, in order; what is in no module is the last child of the root. */
  _grow() {
    this.children = Array.from({ length: this.count + 1 }, () => []);
    this.depth = new Uint16Array(this.count + 1);
    for (let place = 1; place < this.count; place += 1) {
      const parent = this.modules.parent[place];
      this.children[parent].push(place);
      this.depth[place] = this.depth[parent] + 1;
    }
    if (this.hasNobody) this.children[ROOT].push(this.nobody);
    this.depth[this.nobody] = 1;
    this.paths = new Array(this.count + 1);
    this.byPath = new Map();
    for (let place = 0; place < this.count; place += 1) {
      const above = place === ROOT ? "" : this.paths[this.modules.parent[place]];
      const name = this.text(this.modules.name[place]);
      this.paths[place] = above ? `${above}.${name}` : name;
      this.byPath.set(this.paths[place], place);
    }
    this.paths[this.nobody] = "";
  }

  /** Nodes, weights and flows by module. */
  _place() {
    const lists = () => Array.from({ length: this.count + 1 }, () => []);
    const { nodes, answers, weights } = this.data;
    this.nodesOf = lists();
    this.sharedOf = lists();
    this.nodeByKey = new Map();
    for (let node = 0; this.hasNodes && node < nodes.name.length; node += 1) {
      const answer = nodes.answer[node];
      this.nodesOf[answers.module[answer]].push(node);
      const owners = this.data.owners[answers.owners[answer]];
      if (owners.length > 1) {
        for (const place of new Set(owners.map((owner) => owner[0]))) {
          if (place !== answers.module[answer]) this.sharedOf[place].push(node);
        }
      }
      this.nodeByKey.set(this.text(nodes.key[node]), node);
    }
    this.weightsOf = lists();
    weights.name.forEach((_, weight) => this.weightsOf[weights.module[weight]].push(weight));
    this.flowsOf = lists();
    for (const flow of this.data.flows) this.flowsOf[flow.module].push(flow);
    for (const flows of this.flowsOf) flows.sort((one, other) => one.call - other.call);
    this.callsOf = lists();
    this.data.calls.module.forEach((place, call) => this.callsOf[place].push(call));
  }

  /** What modules can be sized by: of themselves, and with everything inside. */
  _measures() {
    const found = [
      new Measure("nodes", "Nodes", this.modules.nodes, countText, this),
      new Measure("parameters", "Parameters", this.modules.parameters, countText, this, "parameters", this.modules.totals.parameters),
      new Measure("bytes", "Bytes", this.modules.bytes, bytesText, this, "bytes of weights", this.modules.totals.bytes),
    ];
    const { cost, profile } = this.data;
    if (cost) found.push(new Measure("flops", "FLOPs", cost.flops, flopsText, this, "FLOPs"));
    if (profile) found.push(new Measure("time", "Time", profile.own, timeText, this));
    return Object.fromEntries(found.map((measure) => [measure.key, measure]));
  }

  text(place) {
    return place < 0 ? "" : this.texts[place];
  }

  parent(place) {
    return place === this.nobody ? ROOT : this.modules.parent[place];
  }

  /** The modules around one, the root first, itself last. */
  lineage(place) {
    const found = [];
    for (let at = place; at >= 0; at = this.parent(at)) found.unshift(at);
    return found;
  }

  className(place) {
    return place === this.nobody ? "" : printable(this.text(this.modules.class[place]));
  }

  /** As it is shown: the root by its class, any other by what it adds to the path around it. */
  label(place) {
    if (place === this.nobody) return "(no module)";
    if (place === ROOT) return this.className(ROOT) || "(model)";
    return printable(this.text(this.modules.name[place])) || "(unnamed)";
  }

  pathLabel(place) {
    if (place === this.nobody) return "(no module)";
    return place === ROOT ? this.label(ROOT) : printable(this.paths[place]);
  }

  callLabel(place, call) {
    return this.pathLabel(place) + (call ? `#${call}` : "");
  }

  nodeName(node) {
    const { name, key } = this.data.nodes;
    return printable(this.text(name[node]) || this.text(key[node]) || `node ${node}`);
  }

  operator(node) {
    return printable(this.text(this.data.nodes.op[node]));
  }

  /** What is known about the module of a node. */
  answer(node) {
    const { answers, owners, evidence } = this.data;
    const row = this.data.nodes.answer[node];
    return {
      module: answers.module[row],
      around: answers.around[row],
      call: answers.call[row],
      owners: owners[answers.owners[row]],
      confidence: answers.confidence[row],
      evidence: evidence[answers.evidence[row]].map((place) => printable(this.text(place))),
      reason: printable(this.text(answers.reason[row])),
      role: printable(this.text(answers.role[row])),
      layer: answers.layer[row],
    };
  }

  value(place) {
    const { name, dtype, shape } = this.data.values;
    return {
      name: printable(this.text(name[place])),
      dtype: printable(this.text(dtype[place])),
      shape: printable(this.text(shape[place])),
    };
  }

  /** The flow of a call of a module. What is only a container shows that of the module around it. */
  flow(place, call) {
    if (place === this.nobody) return null;
    for (let at = place; at >= 0; at = this.parent(at)) {
      const flows = this.flowsOf[at];
      if (flows.length) return flows.find((flow) => flow.call === call && at === place) || flows[0];
      if (!this.modules.container[at]) return null;
    }
    return null;
  }

  /** Everything inside of a module, itself among it: modules come right after the one around them. */
  within(place) {
    if (place === this.nobody) return [place, place + 1];
    let end = place + 1;
    while (end < this.count && this.depth[end] > this.depth[place]) end += 1;
    return [place, end];
  }

  /** How many nodes of a module, with everything inside, are known how well. */
  confidences(place) {
    if (!this._confidences) {
      this._confidences = this.modules.confidence.map((own) => totals(own, this));
    }
    return this._confidences.map((level) => level[place]);
  }
}

/** Sums over everything inside of a module. Modules come after the one around them, so one pass from the end will do. */
/** Sums of the modules inside; the whole includes what is in no module. */
function totals(own, model) {
  const found = Float64Array.from(own);
  if (model.hasNobody) found[ROOT] += found[model.nobody];
  for (let place = model.count - 1; place > 0; place -= 1) found[model.modules.parent[place]] += found[place];
  return found;
}

/** Totals that are given: what modules share counts once in those around them. */
function withNobody(given, model) {
  const found = Float64Array.from(given);
  if (model.hasNobody) found[ROOT] += found[model.nobody];
  return found;
}

/** `total` is what is told of a module with everything inside; `area` are sums of parts, as a map needs them. */
class Measure {
  constructor(key, label, own, words, model, noun = key, given = null) {
    const area = totals(own, model);
    Object.assign(this, { key, label, noun, own, words, area, total: given ? withNobody(given, model) : area });
  }
}
