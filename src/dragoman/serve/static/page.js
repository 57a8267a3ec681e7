"use strict";

const ALTERNATIVES = 3;
const PAUSE_MILLISECONDS = 250; // After the last key, before it asks.
const LONGEST_WITH_ALTERNATIVES = 300; // Characters: other versions of a whole page help nobody.

const byId = (id) => document.getElementById(id);
const [source, target, status, count] = ["source", "target", "status", "count"].map(byId);
const [sourceLanguage, targetLanguage] = ["source-language", "target-language"].map(byId);

let languages = [];
let limit = Infinity;
let timer = 0;
let pending = null; // What aborts the request that is under way.

const targetsOf = (code) => languages.find((language) => language.code === code)?.targets ?? [];
const nameOf = (code) => languages.find((language) => language.code === code)?.name ?? code;

function fill(select, codes) {
  const before = select.value;
  select.replaceChildren(...codes.map((code) => new Option(nameOf(code), code)));
  if (codes.includes(before)) select.value = before;
  select.disabled = codes.length < 2;
}

function showLanguages() {
  fill(targetLanguage, targetsOf(sourceLanguage.value));
  source.lang = sourceLanguage.value;
  target.lang = targetLanguage.value;
  byId("swap").hidden = !targetsOf(targetLanguage.value).includes(sourceLanguage.value);
}

function tell(message, isError = false) {
  status.textContent = message;
  status.classList.toggle("error", isError);
}

function showResult(text, alternatives = [], scores = []) {
  target.value = text;
  byId("copy").hidden = !text;
  byId("other").hidden = !alternatives.length;
  byId("alternatives").replaceChildren(
    ...alternatives.map((alternative, index) => {
      const words = Object.assign(document.createElement("span"), { textContent: alternative });
      words.className = "words";
      words.dir = "auto";
      words.lang = targetLanguage.value;
      const score = Object.assign(document.createElement("span"), { className: "quiet" });
      score.textContent = scores[index + 1]?.toFixed(2) ?? "";
      score.title = "Log-probability, normalised by length; closer to 0 is more likely";
      const button = Object.assign(document.createElement("button"), { type: "button" });
      button.title = "Use this one";
      button.append(words, score);
      button.addEventListener("click", () => {
        const rest = [target.value, ...alternatives.filter((_, other) => other !== index)];
        const restScores = [scores[index + 1], scores[0], ...scores.slice(1).filter((_, other) => other !== index)];
        showResult(alternative, rest, restScores);
      });
      const item = document.createElement("li");
      item.append(button);
      return item;
    }),
  );
}

async function ask(path, body, signal) {
  const options = body && {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  };
  const response = await fetch(path, options);
  // A proxy, or a server with too many connections, answers with a page of its own.
  const answer = await response.json().catch((error) => {
    if (error.name === "AbortError") throw error;
    return {};
  });
  if (response.ok && Object.keys(answer).length) return answer;
  throw new Error(answer.error || `The server is busy or cannot be reached (${response.status}).`);
}

async function translate() {
  pending?.abort();
  target.parentElement.classList.remove("busy");
  if (!source.value.trim()) {
    showResult("");
    tell("");
    return;
  }
  const controller = (pending = new AbortController());
  const isShort = source.value.length <= LONGEST_WITH_ALTERNATIVES;
  const body = {
    q: source.value,
    source: sourceLanguage.value,
    target: targetLanguage.value,
    format: "text",
    alternatives: isShort ? ALTERNATIVES : 0,
    scores: true,
    ...(byId("key").value && { api_key: byId("key").value }),
  };
  target.parentElement.classList.add("busy");
  tell("Translating …");
  try {
    const answer = await ask("translate", body, controller.signal);
    showResult(answer.translatedText, answer.alternatives, answer.scores);
    tell("");
  } catch (error) {
    if (error.name === "AbortError") return;
    showResult("");  // It would seem to be that of the new text.
    tell(error instanceof TypeError ? "The server is not responding." : error.message, true);
  }
  target.parentElement.classList.remove("busy");
}

function changed() {
  const characters = [...source.value].length;
  count.textContent = characters ? `${characters.toLocaleString("en")} / ${limit.toLocaleString("en")}` : "";
  count.classList.toggle("error", characters > limit);
  byId("clear").hidden = !characters;
  clearTimeout(timer);
  timer = setTimeout(translate, PAUSE_MILLISECONDS);
}

function changeLanguages() {
  showLanguages();
  changed();
}

source.addEventListener("input", changed);
byId("key").addEventListener("input", changed);
byId("key-row").addEventListener("submit", (event) => event.preventDefault());
sourceLanguage.addEventListener("change", changeLanguages);
targetLanguage.addEventListener("change", changeLanguages);
byId("clear").addEventListener("click", () => {
  source.value = "";
  source.focus();
  changed();
});
byId("swap").addEventListener("click", () => {
  const [from, to] = [sourceLanguage.value, targetLanguage.value];
  source.value = target.value || source.value;
  sourceLanguage.value = to;
  showLanguages();
  targetLanguage.value = from;
  changeLanguages();
});
byId("copy").addEventListener("click", async () => {
  target.select();
  // Browsers keep the clipboard to pages of this machine and to https; elsewhere the old way works.
  if (navigator.clipboard) await navigator.clipboard.writeText(target.value).catch(() => {});
  else document.execCommand("copy");
  tell("Copied");
});

(async () => {
  try {
    const [known, settings] = await Promise.all([ask("languages"), ask("frontend/settings")]);
    languages = known;
    limit = settings.charLimit;
    byId("key-row").hidden = !settings.keyRequired;
    fill(sourceLanguage, known.filter((one) => one.targets.length).map((one) => one.code));
    sourceLanguage.value = settings.language.source.code;
    changeLanguages();
  } catch {
    tell("The server is not responding.", true);
  }
})();
