// Replaces the live part of a page with the fragments that the server sends. The focus, opened details and the scroll
// position of tables stay.
"use strict";
(() => {
  const live = document.getElementById("live");
  const status = document.getElementById("live-status");
  if (!live) return;
  let pause = 1000;

  const show = (html) => {
    const focused = live.contains(document.activeElement) ? document.activeElement.id : "";
    const opened = [...live.querySelectorAll("details[open]")].map((each) => each.id);
    const scrolled = [...live.querySelectorAll(".scroll")].map((each) => [each.id, each.scrollLeft]);
    live.innerHTML = html;
    for (const id of opened) document.getElementById(id)?.setAttribute("open", "");
    for (const [id, left] of scrolled) { const each = document.getElementById(id); if (each) each.scrollLeft = left; }
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  };

  const lost = async () => {
    status.textContent = "Not live: the connection is lost, trying again";
    status.classList.add("lost");
    // An answer other than the page, such as the one for signing in, replaces it.
    const answer = await fetch(location.href, { method: "HEAD" }).catch(() => null);
    const waits = answer && (answer.status >= 500 || answer.status === 429);
    if (answer && !waits && (answer.redirected || !answer.ok)) location.reload();
    setTimeout(open, pause);
    pause = Math.min(2 * pause, 30000);
  };

  const open = () => {
    const source = new EventSource(live.dataset.stream);
    source.addEventListener("fragment", (event) => {
      pause = 1000;
      status.textContent = "Live";
      status.classList.remove("lost");
      show(JSON.parse(event.data));
    });
    source.addEventListener("end", () => { source.close(); location.reload(); });
    source.addEventListener("error", () => { source.close(); lost(); });
  };
  open();
})();
