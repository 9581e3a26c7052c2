"use strict";
// Follows the runs of a served page: what changed is fetched and put into place.
(() => {
  const EVERY_MS = 2000;
  const { live } = document.body.dataset;
  let { mark } = document.body.dataset;

  const renew = async () => {
    const answer = await fetch(location.href, { cache: "no-store" });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.getElementById("main");
    if (!answer.ok || !fresh) return;
    document.getElementById("main").replaceChildren(...fresh.childNodes);
    document.dispatchEvent(new Event("renewed"));
  };

  const follow = async () => {
    let running = true;
    try {
      const answer = await fetch(live, { cache: "no-store" });
      if (answer.ok) {
        const state = await answer.json();
        if (state.mark !== mark) await renew();
        ({ mark, running } = state);
      }
    } catch {
      // The server may answer again later.
    }
    if (running) setTimeout(follow, EVERY_MS);
  };
  setTimeout(follow, EVERY_MS);
})();
