// Puts a button on each block of code that copies it. Browsers allow this on https, localhost and files alone.
if (navigator.clipboard) {
  for (const block of document.querySelectorAll("div.highlight")) {
    const code = block.querySelector("pre").textContent;
    const button = document.createElement("button");
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(code);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    block.append(button);
  }
}
