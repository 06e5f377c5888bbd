// The page's frame: tabs, theme, and whether the server is there.
import { $, memory } from './dom.js';
import { call } from './api.js';
import { startChat } from './chat.js';
import { startEngine, watchEngine } from './engine.js';
import { showDefaults } from './settings.js';
import { tellStory } from './story.js';

const tabs = ['chat', 'engine'];

function link(state, text) {
  $('link').className = 'link ' + state;
  $('link').querySelector('span').textContent = text;
}

function show(name, focus) {
  for (const t of tabs) {
    const on = t === name;
    $(t).hidden = !on;
    $('tab-' + t).setAttribute('aria-selected', on);
    $('tab-' + t).tabIndex = on ? 0 : -1;
  }
  if (focus) $('tab-' + name).focus();
  if (location.hash.split('/')[0] !== '#' + name) history.replaceState(null, '', '#' + name);
  watchEngine(name === 'engine', link);
  if (name === 'chat') ready();
}

// One line about the server while the chat is shown; the dashboard has its own stream.
let timer = 0;
async function ready() {
  clearTimeout(timer);
  try {
    const response = await fetch('/ready', { cache: 'no-store' });
    if (response.ok) link('live', 'ready');
    else link('lost', (await response.json()).error.message);
    if (response.ok && !$('model').textContent) {
      const models = await (await call('/v1/models')).json();
      $('model').textContent = models.data[0].id;
      document.title = `${models.data[0].id} · sluice`;
      showDefaults(models.data[0].default_sampling_params);
    }
  } catch (e) {
    link('lost', e.status ? e.message : 'no connection');
  }
  if (!$('chat').hidden) timer = setTimeout(ready, 5000);
}

function theme(name) {
  const root = document.documentElement;
  if (name === 'auto') root.removeAttribute('data-theme'); else root.dataset.theme = name;
  $('theme').textContent = { auto: 'Auto', light: 'Light', dark: 'Dark' }[name];
  memory.set('theme', name);
  document.dispatchEvent(new Event('theme'));
}

startChat();
startEngine();
theme(memory.get('theme', 'auto'));
$('theme').addEventListener('click', () => {
  const next = { auto: 'light', light: 'dark', dark: 'auto' };
  theme(next[memory.get('theme', 'auto')] ?? 'auto');
});
for (const t of tabs) {
  $('tab-' + t).addEventListener('click', () => show(t));
  $('tab-' + t).addEventListener('keydown', (e) => {
    if (e.key === 'ArrowRight' || e.key === 'ArrowLeft') show(tabs[1 - tabs.indexOf(t)], true);
  });
}
// #chat, #engine, or #engine/ID with the story of a request.
function follow() {
  const [name, id] = location.hash.slice(1).split('/');
  show(tabs.includes(name) ? name : 'chat');
  if (name === 'engine' && id) tellStory(decodeURIComponent(id));
}
addEventListener('hashchange', follow);
follow();
if (!$('chat').hidden) $('input').focus();
