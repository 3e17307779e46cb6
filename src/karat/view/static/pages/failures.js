// The failures of a run by kind.
import { Component, Loaded, address, html, plural, runPath, shell, whole } from "../lib.js";
import { Plot, Status, part } from "../parts.js";

/** Evaluators whose skips for one reason are listed at once. */
const FEW = 5;

export class FailuresPage extends Component {
  componentDidMount() {
    this.props.keys({ command: () => `karat show ${shell(this.props.runs[0])} --failed` });
  }
  render() {
    const { runs: [id], version } = this.props;
    return html`<${Loaded} path="/api/f/${encodeURIComponent(id)}" version=${version}>${(/** @type {any} */ data) => {
      document.title = `Failures of ${data.run.label} · karat`;
      const path = runPath(data.run.id);
      const failed = data.kinds.filter((/** @type {any} */ kind) => kind.status === "failed");
      const skipped = data.kinds.filter((/** @type {any} */ kind) => kind.status !== "failed");
      return html`<h1>Failures of ${data.run.label}</h1>
        <p class="conclusion">${sentence(failed, "failed")} ${sentence(skipped, "skipped")}</p>
        <${Plot} plot=${data.plot ?? null} link=${(/** @type {any} */ about) => (about.filter ? address(path, { filter: about.filter }) : null)} />
        ${failed.map((/** @type {any} */ kind) => section(kind, path))}
        ${skipped.length ? html`<h2>Skipped</h2><ul class="kind">${byReason(skipped).map((kinds) => reason(kinds, path))}</ul>` : null}`;
    }}<//>`;
  }
}

/** `7 outputs and 3 results of close failed.` @param {any[]} kinds @param {string} status */
function sentence(kinds, status) {
  const counts = new Map();
  for (const kind of kinds) {
    const what = kind.what === "output" ? "output" : "result";
    counts.set(what, (counts.get(what) ?? 0) + kind.count);
  }
  const parts = [...counts].map(([what, count]) => plural(count, what));
  if (!parts.length) return status === "failed" ? "Nothing failed." : "Nothing was skipped.";
  const total = kinds.reduce((sum, kind) => sum + kind.count, 0);
  return `${parts.join(" and ")} ${status === "failed" ? "failed" : total === 1 ? "was skipped" : "were skipped"}.`;
}

/** Skips by their reason: those that follow from a failed output are the same for every evaluator. @param {any[]} kinds */
function byReason(kinds) {
  /** @type {Map<string, any[]>} */
  const found = new Map();
  for (const kind of kinds) found.set(kind.type, [...(found.get(kind.type) ?? []), kind]);
  return [...found.values()];
}

/** @param {any[]} kinds @param {string} path */
function reason(kinds, path) {
  if (kinds.length === 1) return html`<li>${skip(kinds[0], path)}</li>`;
  const total = kinds.reduce((sum, kind) => sum + kind.count, 0);
  return html`<li><details open=${kinds.length <= FEW}><summary><span class="text" dir="auto">${kinds[0].type}</span>: ${plural(total, "result")} of ${plural(kinds.length, "evaluator")}</summary>
    <ul>${kinds.map((kind) => html`<li>${skip(kind, path)}</li>`)}</ul></details></li>`;
}

/** @param {any} kind @param {string} path */
const skip = (kind, path) => html`<a data-row=${kind.type} href=${address(path, { filter: kind.filter })}>${whole(kind.count)}</a> <span>${kind.what}: </span>
  <span class="text" dir="auto">${kind.type}</span> ${examples(kind, path)}`;

/** @param {any} kind @param {string} path */
const section = (kind, path) => html`<section class="kind">
  <h2><a data-row=${kind.type} href=${address(path, { filter: kind.filter })}>${kind.type}</a> <span class="muted">${kind.what}</span> <${Status} status=${kind.status} /> ${whole(kind.count)}</h2>
  <ul>${kind.examples.map((/** @type {any} */ each) => html`<li><a href=${address(path, { filter: kind.filter, key: each.key, open: 1 })}>${each.example}${part({ attempt: each.attempt, unit: "" })}</a>
    <span class="text" dir="auto"> ${each.message}</span>${each.where ? html` <span class="muted">${each.where}</span>` : null}</li>`)}</ul>
  <p><a href=${address(path, { filter: kind.filter })}>all ${whole(kind.count)}</a></p>
</section>`;

/** The first examples of a kind in a line. @param {any} kind @param {string} path */
const examples = (kind, path) => html`<span class="muted">${kind.examples.map((/** @type {any} */ each, /** @type {number} */ place) =>
  html`${place ? ", " : ""}<a href=${address(path, { filter: kind.filter, key: each.key, open: 1 })}>${each.example}${part({ attempt: each.attempt, unit: "" })}</a>`)}${kind.count > kind.examples.length ? ", …" : ""}</span>`;
