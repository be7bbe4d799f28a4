// Add a copy button to each code block. Browsers allow it only on https, localhost and files.
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
