// What the page shows as a command and as lines of a scenario.
"use strict";

const edgeflCommand = (() => {
  // PATH=VALUE lines as YAML: nested, or under `compare` where the scenario compares something itself.
  function yaml(record, changes) {
    const pairs = changes.map((change) => [change.slice(0, change.indexOf("=")), change.slice(change.indexOf("=") + 1)]);
    if (!pairs.length) return "# as the scenario is";
    if (record.compares) return ["compare:", ...pairs.map(([path, value]) => `  ${path}: [${value}]`)].join("\n");
    const tree = new Map();
    for (const [path, value] of pairs) {
      const names = path.split("."), last = names.pop();
      let place = tree;
      for (const name of names) {
        if (!(place.get(name) instanceof Map)) place.set(name, new Map());
        place = place.get(name);
      }
      place.set(last, value);
    }
    const lines = (map, indent) => [...map].flatMap(([name, value]) => (value instanceof Map ? [`${indent}${name}:`, ...lines(value, `${indent}  `)] : [`${indent}${name}: ${value}`]));
    return lines(tree, "").join("\n");
  }

  // Copies a text; the button says so for a while.
  async function copy(button, text) {
    const words = button.dataset.words ?? button.textContent;
    button.dataset.words = words;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "copied";
    } catch (error) {
      if (!(error instanceof DOMException || error instanceof TypeError)) throw error;
      button.textContent = "not allowed here: select the text";
    }
    setTimeout(() => {
      button.textContent = words;
    }, 2000);
  }

  function download(name, type, text) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  return { yaml, copy, download };
})();
