// The search of the front page. PAGES (in search-index.js) has a page's paragraphs: {"01_name": ["...", ...], ...}.
// A page fits if one of its paragraphs has all words; that paragraph is shown under it.
(() => {
  const field = document.querySelector("input[type=search]");
  const count = document.querySelector(".count");
  const cards = [...document.querySelectorAll(".card")];

  const wordsOf = (text) => text.toLowerCase().split(/\s+/).filter(Boolean);
  const hasAll = (text, words) => words.every((word) => text.includes(word));

  function snippet(paragraph, words) {
    const at = Math.max(0, paragraph.toLowerCase().indexOf(words[0]) - 60);
    const line = document.createElement("p");
    line.className = "found";
    let rest = (at ? "… " : "") + paragraph.slice(at, at + 180) + (paragraph.length > at + 180 ? " …" : "");
    while (rest) {
      const lower = rest.toLowerCase();
      const hits = words.map((word) => [lower.indexOf(word), word]).filter(([place]) => place >= 0);
      if (!hits.length) break;
      const [place, word] = hits.reduce((a, b) => (b[0] < a[0] ? b : a));
      const mark = document.createElement("mark");
      mark.textContent = rest.slice(place, place + word.length);
      line.append(rest.slice(0, place), mark);
      rest = rest.slice(place + word.length);
    }
    line.append(rest);
    return line;
  }

  function look() {
    const words = wordsOf(field.value);
    let shown = 0;
    for (const card of cards) {
      card.querySelectorAll(".found").forEach((line) => line.remove());
      const paragraphs = PAGES[card.dataset.page] || [];
      const places = words.length ? paragraphs.filter((each) => hasAll(each.toLowerCase(), words)) : [];
      card.hidden = words.length > 0 && !places.length;
      shown += !card.hidden;
      places.slice(0, 2).forEach((each) => card.append(snippet(each, words)));
    }
    count.textContent = words.length ? `${shown} of ${cards.length} pages` : "";
  }

  field.addEventListener("input", look);
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { field.value = ""; look(); }
  });
  look();
})();
