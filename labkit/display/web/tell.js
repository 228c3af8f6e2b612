// Tell the server of this page what was answered in it: it adds a line to the learner's own file
// (labkit/course/answers.py). Where no such server listens, nothing is noted and nothing is said.
(told) => {
  const config = document.getElementById("jupyter-config-data");
  if (!config) return;
  const { baseUrl } = JSON.parse(config.textContent);
  const [, xsrf] = document.cookie.match(/(?:^|; )_xsrf=([^;]*)/) || [];
  const headers = { "Content-Type": "application/json", "X-XSRFToken": xsrf || "" };
  fetch(baseUrl + "labkit/answers", { method: "POST", headers, body: JSON.stringify(told) }).catch(() => {});
}
