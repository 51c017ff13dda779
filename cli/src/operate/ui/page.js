// Renews live pages, and draws "What if" while the visitor types. Everything also works without it.
'use strict';

const content = document.getElementById('content');

/** Replaces the content of an element by that of the same element in the text of a page. */
function replace(element, text) {
  const page = new DOMParser().parseFromString(text, 'text/html');
  const renewed = page.getElementById(element.id);
  if (!renewed) return;
  const place = [...element.querySelectorAll('a')].indexOf(document.activeElement);
  element.replaceChildren(...renewed.childNodes);
  if (place >= 0) element.querySelectorAll('a')[place]?.focus({ preventScroll: true });
}

function renewLivePage(pause) {
  const status = document.getElementById('renewal');
  status.innerHTML = '<span role="status"></span> <button type="button" class="quiet"></button>';
  const [text, button] = status.children;
  let paused = false;
  const state = () => (content.querySelector('.notice.problem') ? 'Not live: the database does not answer' : 'Live');
  const label = () => { button.textContent = paused ? 'Resume' : 'Pause'; };
  button.addEventListener('click', () => {
    paused = !paused;
    text.textContent = paused ? 'Paused' : state();
    label();
  });
  label();
  text.textContent = state();

  // Typing, typed text or an open form is not interrupted.
  const isBusy = () => {
    const focused = document.activeElement;
    const typing = focused && content.contains(focused) && focused.matches('input, select, textarea, button, summary');
    const isChanged = (field) => field.type !== 'hidden' && field.value !== field.defaultValue;
    return typing || [...content.querySelectorAll('input')].some(isChanged) || content.querySelector('details[open].act') || !document.getSelection().isCollapsed;
  };
  const renew = async () => {
    if (!paused && !document.hidden && !isBusy()) {
      try {
        const response = await fetch(location.href, { headers: { accept: 'text/html' } });
        const page = await response.text();
        if (!paused && !isBusy()) replace(content, page);
        if (!paused) text.textContent = state();
      } catch {
        text.textContent = 'Not renewed: pg-limiter does not answer';
      }
    } else if (!paused && !document.hidden) {
      text.textContent = 'Waits for your input';
    }
    setTimeout(renew, pause);
  };
  setTimeout(renew, pause);
}

function drawAsTyped(form) {
  const result = document.getElementById('result');
  let timer;
  let running;
  const draw = async () => {
    running?.abort();
    running = new AbortController();
    result.setAttribute('aria-busy', 'true');
    try {
      const response = await fetch(form.action, { method: 'POST', body: new FormData(form), signal: running.signal });
      replace(result, await response.text());
      result.removeAttribute('aria-busy');
    } catch (error) {
      if (error.name !== 'AbortError') result.removeAttribute('aria-busy');
    }
  };
  const show = () => {
    const values = { kind: form.elements.kind.value, traffic: form.elements.traffic.value };
    for (const part of form.querySelectorAll('[data-for]')) {
      part.hidden = !part.dataset.for.split(' ').some((name) => name === values.kind || name === values.traffic);
    }
  };
  form.addEventListener('input', () => {
    show();
    clearTimeout(timer);
    timer = setTimeout(draw, 350);
  });
  show();
}

if (content?.dataset.refresh) renewLivePage(Number(content.dataset.refresh));
const form = document.getElementById('what-if');
if (form) drawAsTyped(form);
