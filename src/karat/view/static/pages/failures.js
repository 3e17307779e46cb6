// The failures of a run by kind.
import { Component, Loaded, address, html, plural, runPath, shell, whole } from "../lib.js";
import { Plot, Status } from "../parts.js";

export class FailuresPage extends Component {
  componentDidMount() {
    this.props.keys({ command: () => `karat show ${shell(this.props.runs[0])} --failed` });
  }
  render() {
    const { runs: [id], version } = this.props;
    return html`<${Loaded} path="/api/f/${encodeURIComponent(id)}" version=${version}>${(/** @type {any} */ data) => {
      document.title = `Failures of ${data.run.label} · karat`;
      const path = runPath(data.run.id);
      const total = data.kinds.reduce((/** @type {number} */ sum, /** @type {any} */ kind) => sum + kind.count, 0);
      return html`<h1>Failures of ${data.run.label}</h1>
        <p>${total ? `${plural(total, "item")} in ${plural(data.kinds.length, "kind")}.` : "Nothing failed and nothing was skipped."}</p>
        <${Plot} plot=${data.plot ?? null} link=${(/** @type {any} */ about) => (about.filter ? address(path, { filter: about.filter }) : null)} />
        ${data.kinds.map((/** @type {any} */ kind) => html`<section class="kind">
          <h2><a data-row=${kind.type} href=${address(path, { filter: kind.filter })}>${kind.type}</a> <span class="muted">${kind.what}</span> <${Status} status=${kind.status} /> ${whole(kind.count)}</h2>
          <ul>${kind.examples.map((/** @type {any} */ each) => html`<li><a href=${address(path, { filter: kind.filter, key: each.key, open: 1 })}>${each.example}</a>
            <span class="text" dir="auto"> ${each.message}</span>${each.where ? html` <span class="muted">${each.where}</span>` : null}</li>`)}</ul>
          <p><a href=${address(path, { filter: kind.filter })}>all ${whole(kind.count)}</a></p>
        </section>`)}`;
    }}<//>`;
  }
}
