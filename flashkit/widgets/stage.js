function render({ model, el }) {
  el.classList.add("flashkit-stage");
  const sentence = document.createElement("p");
  sentence.className = "flashkit-sentence";
  el.append(sentence);
  const draw = () => {
    const step = model.get("steps")[model.get("index")];
    sentence.textContent = step ? step.sentence : model.get("error");
  };
  model.on("change", draw);
  draw();
}
export default { render };
