// A page opened from the disk may not start a worker, in which the search would run: a hidden frame runs it instead.
if (location.protocol === "file:") window.Worker = class extends EventTarget {
  constructor(url) {
    super();
    this.waiting = [];
    const frame = document.createElement("iframe");
    frame.hidden = true;
    frame.title = "search";
    frame.srcdoc = `<!doctype html><script src="${new URL(url, location)}"></script>`;
    this.addEventListener("message", event => this.onmessage?.(event));
    document.body.append(frame);
    frame.addEventListener("load", () => {
      this.inside = frame.contentWindow;
      this.inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", {data}));
      this.waiting.forEach(data => this.postMessage(data));
    });
  }
  postMessage(data) {
    if (this.inside) this.inside.dispatchEvent(new MessageEvent("message", {data}));
    else this.waiting.push(data);
  }
  terminate() {}
};
