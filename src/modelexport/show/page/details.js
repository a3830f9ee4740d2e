// Everything about the opened module, or about one of its nodes.

class Details {
  constructor(model) {
    this.model = model;
    this.host = document.getElementById("details");
  }

  draw(place, call, node) {
    const parts = node === null ? this._module(place, call) : [...this._node(node), ...this._module(place, call)];
    this.host.replaceChildren(...parts.filter(Boolean));
    this.host.scrollTop = 0;
  }

  _module(place, call) {
    return [
      this._title(place),
      this._amounts(place),
      this._confidence(place),
      this._difference(place),
      this._verified(place),
      this._ends(place, call),
      this._calls(place),
      this._roles(place),
      this._children(place),
      this._tensors(place),
      ...this._nodes(place, call),
      place === ROOT ? this._file() : null,
    ];
  }

  _title(place) {
    const { model } = this;
    const { modules } = model;
    if (place === model.nobody) return element("header", {}, element("h2", {}, "(no module)"), element("p", { class: "muted" }, "Nodes whose module is not known."));
    const aliases = modules.aliases[place].map((alias) => printable(model.text(alias))).join(", ");
    const absent = printable(model.text(modules.absent[place]));
    return element(
      "header",
      {},
      element("p", { class: "kicker" }, model.className(place), modules.container[place] ? " · container" : ""),
      named(model.pathLabel(place), place === ROOT ? "" : "path"),
      facts([
        ["tag", model.text(modules.tag[place]) ? [code(printable(model.text(modules.tag[place]))), copier(printable(model.text(modules.tag[place])), "tag")] : ""],
        ["package", code(printable(model.text(modules.package[place])))],
        ["calls", modules.container[place] && !modules.calls[place] ? "" : plainText(modules.calls[place])],
        ["also as", aliases],
        ["owns nothing", absent],
      ]),
    );
  }

  _amounts(place) {
    const { measures } = this.model;
    const tiles = Object.values(measures).map((measure) => {
      const whole = measure.total[ROOT];
      const share = place !== ROOT && whole ? shareText(measure.total[place] / whole) : "";
      return element(
        "div",
        { class: "tile" },
        element("span", { class: "label" }, measure.label),
        element("b", {}, measure.words(measure.total[place])),
        element("span", { class: "aside" }, [share, measure.own[place] !== measure.total[place] && measure.own[place] ? `${measure.words(measure.own[place])} own` : ""].filter(Boolean).join(" · ")),
      );
    });
    return element("div", { class: "tiles" }, tiles);
  }

  _confidence(place) {
    const levels = this.model.confidences(place);
    const all = levels.reduce((sum, level) => sum + level, 0);
    if (!all) return null;
    const shown = CONFIDENCES.map((name, level) => [name, levels[level]]).reverse().filter(([, count]) => count);
    const bar = shown.map(([name, count]) => element("i", { class: name, style: { flexGrow: count }, title: `${name} ${count}` }));
    const words = shown.map(([name, count]) => element("li", {}, element("i", { class: name, "aria-hidden": "true" }), `${name} ${plainText(count)}`));
    return element("div", { class: "confidence" }, element("div", { class: "stack", "aria-hidden": "true" }, bar), element("ul", {}, words));
  }

  _difference(place) {
    const { difference } = this.model.data;
    if (!difference) return null;
    const lines = (difference.lines[place] || []).map((text) => element("li", {}, printable(this.model.text(text))));
    const inside = this._changedInside(place);
    const words = lines.length ? element("ul", { class: "lines" }, lines) : element("p", { class: "muted" }, "None in this module itself.");
    return section("Difference", `${STATE_WORDS[difference.state[place]] || difference.state[place]} · against ${printable(difference.against)}`, element("div", {}, words, inside));
  }

  /** Links to the modules inside that differ themselves. */
  _changedInside(place) {
    const { model } = this;
    const { state } = model.data.difference;
    const [first, end] = model.within(place);
    const found = [];
    for (let at = first + 1; at < end; at += 1) if (state[at] === "changed" || state[at] === "added") found.push(at);
    if (!found.length) return null;
    const line = (row) => cells(link(address(model, found[row]), model.pathLabel(found[row])), state[found[row]]);
    return table(["inside", ""], found.length, line);
  }

  _verified(place) {
    const { verification } = this.model.data;
    if (!verification) return null;
    const { calls } = verification;
    const rows = calls.module.map((module, row) => (module === place ? row : -1)).filter((row) => row >= 0);
    if (!rows.length) return null;
    const line = (number) => {
      const row = rows[number];
      const sqnr = calls.sqnr[row];
      return cells(
        String(calls.call[row]),
        element("span", { class: `status ${calls.status[row].replace(" ", "-")}` }, calls.status[row]),
        sqnr === null ? "–" : sqnrText({ sqnr }),
        calls.max_abs[row] === null ? "–" : smallText(calls.max_abs[row]),
        printable(this.model.text(calls.reason[row])),
      );
    };
    return section("Verified", `against ${printable(verification.reference)}`, table(["call", "status", "SQNR", "max |Δ|", ""], rows.length, line));
  }

  _ends(place, call) {
    const flow = this.model.flowsOf[place].find((one) => one.call === call) || this.model.flowsOf[place][0];
    if (!flow) return null;
    const list = (values, count) => {
      if (!count) return element("p", { class: "muted" }, "none");
      return table(["name", "type", "shape"], values.length, (row) => {
        const value = this.model.value(values[row]);
        return cells(code(value.name), value.dtype, value.shape);
      });
    };
    const [enters, leaves] = flow.counts;
    return element(
      "div",
      {},
      section("Inputs", plainText(enters), list(flow.enters, enters)),
      section("Outputs", plainText(leaves), list(flow.leaves, leaves)),
    );
  }

  _calls(place) {
    const { model } = this;
    const { calls } = model.data;
    const rows = model.callsOf[place];
    if (rows.length < 2) return null;
    const line = (number) => {
      const above = calls.parent[rows[number]];
      const index = calls.index[rows[number]];
      return cells(
        link(address(model, place, { call: index }), `#${index}`),
        above < 0 ? "" : link(address(model, calls.module[above], { call: calls.index[above] }), model.callLabel(calls.module[above], calls.index[above])),
      );
    };
    return section("Calls", plainText(rows.length), table(["call", "made by"], rows.length, line), rows.length < 20);
  }

  /** Roles of the nodes inside, the most frequent first. */
  _roles(place) {
    const { model } = this;
    if (!model.hasNodes) return null;
    const { nodes, answers } = model.data;
    const counts = new Map();
    const [first, end] = model.within(place);
    for (let at = first; at < end; at += 1) {
      for (const node of model.nodesOf[at]) {
        const role = answers.role[nodes.answer[node]];
        if (role) counts.set(role, (counts.get(role) || 0) + 1); // the first text is the empty one
      }
    }
    if (!counts.size) return null;
    const ranked = [...counts].sort((one, other) => other[1] - one[1]);
    const chips = ranked.slice(0, 24).map(([role, count]) => element("li", {}, printable(model.text(role)), element("span", {}, plainText(count))));
    return section("Roles", plainText(counts.size), element("ul", { class: "chips" }, chips));
  }

  _children(place) {
    const { model } = this;
    const inside = model.children[place];
    if (!inside.length) return null;
    const { nodes, parameters } = model.measures;
    const line = (row) => {
      const child = inside[row];
      return cells(link(address(model, child), model.label(child)), model.className(child), countText(nodes.total[child]), countText(parameters.total[child]));
    };
    return section("Modules inside", plainText(inside.length), table(["module", "class", "nodes", "params"], inside.length, line), false);
  }

  _tensors(place) {
    const { model } = this;
    const { weights } = model.data;
    const held = place === model.nobody ? [] : model.modules.tensors[place];
    const names = new Set(held.map(([name]) => (model.paths[place] ? `${model.paths[place]}.` : "") + model.text(name)));
    const others = model.weightsOf[place].filter((weight) => !names.has(model.text(weights.name[weight])));
    const count = held.length + others.length;
    if (!count) return null;
    const line = (row) => {
      if (row < held.length) return cells(...held[row].map((text, column) => (column ? printable(model.text(text)) : code(printable(model.text(text))))));
      const weight = others[row - held.length];
      return cells(code(printable(model.text(weights.name[weight]))), printable(model.text(weights.shape[weight])), `${printable(model.text(weights.dtype[weight]))} · stored`);
    };
    return section("Parameters and tensors", plainText(count), table(["name", "shape", "type"], count, line), count <= 12);
  }

  _nodes(place, call) {
    const { model } = this;
    if (!model.hasNodes) return [element("p", { class: "muted" }, "Nodes are left out: this model is too large for one page.")];
    const own = [...this._shownFirst(place, call), ...model.sharedOf[place]];
    const inside = model.measures.nodes.total[place] - model.nodesOf[place].length;
    return [
      own.length ? section("Nodes of its own", plainText(own.length), this._nodeTable(own, place)) : null,
      inside > 0 ? section("Nodes of modules inside", plainText(inside), () => this._nodeTable(this._nodesInside(place), place), false) : null,
    ];
  }

  /** Nodes of the call that is shown come first. */
  _shownFirst(place, call) {
    const nodes = this.model.nodesOf[place];
    if (this.model.modules.calls[place] < 2) return nodes;
    const { nodes: columns, answers, owners } = this.model.data;
    const shown = (node) => owners[answers.owners[columns.answer[node]]].some(([owner, index]) => owner === place && index === call);
    return [...nodes.filter(shown), ...nodes.filter((node) => !shown(node))];
  }

  _nodesInside(place) {
    const [first, end] = this.model.within(place);
    const inside = this.model.nodesOf.slice(first + 1, end);
    if (place === ROOT && this.model.hasNobody) inside.push(this.model.nodesOf[this.model.nobody]);
    return inside.flat().sort((one, other) => one - other); // as they stand in the file
  }

  /** Below the name of a node, how it is known; and where it belongs, unless that is `place` and there is one call of it. */
  _nodeTable(nodes, place) {
    const { model } = this;
    const time = model.data.profile?.nodes;
    const verdicts = model.data.verification?.nodes;
    const columns = ["node", "operator", "confidence", ...(time ? ["time"] : []), ...(verdicts ? ["proof"] : [])];
    const line = (row) => {
      const node = nodes[row];
      const answer = model.answer(node);
      const shared = answer.owners.length > 1;
      const elsewhere = shared ? model.pathLabel(answer.module) : model.callLabel(answer.around, answer.call);
      const where = answer.module !== place || (!shared && model.modules.calls[place] > 1) ? elsewhere : "";
      return cells(
        [link(address(model, answer.module, { node }), model.nodeName(node)), below(where), below(answer.evidence.join(", ") || answer.reason)],
        [model.operator(node), below(answer.role), below(shared ? "shared" : "")],
        badge(answer.confidence),
        ...(time ? [node in time ? timeText(time[node]) : "–"] : []),
        ...(verdicts ? [verdicts[node] || "–"] : []),
      );
    };
    return table(columns, nodes.length, line);
  }

  _node(node) {
    const { model } = this;
    const { data } = model;
    const answer = model.answer(node);
    const values = (places) => element("ul", { class: "values" }, places.map((place) => {
      const value = model.value(place);
      return element("li", {}, code(value.name), ` ${value.dtype} ${value.shape}`);
    }));
    const owners = answer.owners.map(([place, call]) => link(address(model, place, { call }), model.callLabel(place, call)));
    const card = element(
      "article",
      { class: "node" },
      element("p", { class: "kicker" }, `node · ${model.operator(node)}`),
      named(model.nodeName(node), "name"),
      facts([
        ["belongs to", element("span", { class: "owners" }, owners.length ? owners : answer.reason)],
        ["confidence", badge(answer.confidence)],
        ["evidence", answer.evidence.join(", ")],
        ["role", answer.role],
        ["layer", answer.layer < 0 ? "" : String(answer.layer)],
        ["time", data.profile && node in data.profile.nodes ? timeText(data.profile.nodes[node]) : ""],
        ["proof", data.verification?.nodes[node] || ""],
        ["FLOPs", data.cost?.nodes && data.cost.nodes[node] !== null ? flopsText(data.cost.nodes[node]) : ""],
        ["reads", values(data.nodes.inputs[node])],
        ["makes", values(data.nodes.outputs[node])],
        ["key", code(printable(model.text(data.nodes.key[node])))],
      ]),
    );
    return [card];
  }

  _file() {
    const { data } = this.model;
    return section("File", "", facts(data.file.facts.map(([name, text]) => [name, printable(text)])));
  }
}
