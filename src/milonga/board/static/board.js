// Keys, light and dark, and folds that links carry. All of it works on what is on the page: nothing here reads or writes HTML.
"use strict";
(() => {
  const root = document.documentElement;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => { try { return localStorage.getItem("milonga-theme"); } catch { return null; } };
  const dress = () => { root.dataset.theme = chosen() || (dark.matches ? "dark" : "light"); };
  dress();
  dark.addEventListener("change", dress);

  function turnTheme() {
    const next = root.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("milonga-theme", next); } catch { /* shown, not kept */ }
    root.dataset.theme = next;
  }

  const help = () => document.getElementById("help");
  const turnHelp = () => (help().open ? help().close() : help().showModal());
  const items = () => [...document.querySelectorAll("[data-item]")].filter((item) => item.checkVisibility());
  let touched = false; // whether someone has used the page
  let at = null; // the name of the item that is chosen: rows may be built anew under it

  function mark(scroll) {
    for (const item of document.querySelectorAll("[data-item]")) {
      const here = item.dataset.item === at;
      item.classList.toggle("at", here);
      if (here && scroll) item.scrollIntoView({ block: "nearest" });
    }
  }

  function move(by) {
    const names = items().map((item) => item.dataset.item);
    if (!names.length) return;
    const place = names.indexOf(at);
    at = names[place < 0 ? 0 : Math.min(names.length - 1, Math.max(0, place + by))];
    mark(true);
  }

  function enter() {
    const item = items().find((one) => one.dataset.item === at);
    if (!item) return;
    if (item.tagName === "DETAILS") item.open = !item.open;
    else (item.matches("a") ? item : item.querySelector("a"))?.click();
  }

  function foldAll() {
    const steps = [...document.querySelectorAll("details.step:not(.bare)")];
    const open = !steps.some((step) => step.open);
    for (const step of steps) step.open = open;
  }

  const follow = (rel) => document.querySelector(`a[rel=${rel}]`)?.click();
  const keys = {
    j: () => move(1), k: () => move(-1), n: () => follow("next"), o: foldAll, t: turnTheme, "?": turnHelp, Enter: enter,
    "/": () => document.querySelector("input[type=search]")?.focus(),
    Escape: () => (at === null ? follow("up") : ((at = null), mark(false))),
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (help()?.open && event.key === "Escape") return; // the dialog closes itself
    if (event.target.closest("input, select, textarea")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (event.key === "Enter" && (at === null || event.target.closest("a, button, summary"))) return;
    const act = keys[event.key];
    if (!act) return;
    event.preventDefault();
    touched = true;
    act();
  });

  document.addEventListener("click", (event) => {
    touched = true;
    const act = event.target.closest("[data-act]")?.dataset.act;
    if (act === "theme") turnTheme();
    if (act === "help") turnHelp();
    if (event.target === help()) help().close();
  });
  const ticked = new Set(); // runs in the list, by name: rows may be built anew under them
  document.addEventListener("change", (event) => {
    if (event.target.type === "checkbox") ticked[event.target.checked ? "add" : "delete"](event.target.value);
    if (event.target.dataset.act === "submit") event.target.form.requestSubmit();
  });

  // What is unfolded stands in the address, once someone has folded or unfolded anything.
  const folds = new Map(); // what someone has folded or unfolded, by key: rows may be built anew
  document.addEventListener("toggle", (event) => {
    if (!touched || !event.target.dataset?.key) return;
    folds.set(event.target.dataset.key, event.target.open);
    const open = [...document.querySelectorAll("details[data-key][open]")].map((one) => one.dataset.key);
    const here = new URL(location.href);
    here.searchParams.set("open", open.join(","));
    history.replaceState(history.state, "", here);
  }, true);

  // Rows are built anew while a page lives: what was chosen and ticked stays so.
  new MutationObserver(() => {
    if (at !== null) mark(false);
    for (const fold of document.querySelectorAll(".set[data-key]")) {
      const open = folds.get(fold.dataset.key);
      if (open !== undefined && fold.open !== open) fold.open = open;
    }
    if (ticked.size) for (const tick of document.querySelectorAll("input[type=checkbox]")) tick.checked = ticked.has(tick.value);
  }).observe(root, { childList: true, subtree: true });
})();
