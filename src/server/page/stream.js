// An answer as a stream that outlives its connection. When the connection is lost it is taken up
// again behind the last event; when the server has been restarted, the question is asked again.
import { ApiError, call, events } from './api.js';

const kGiveUp = 60_000;     // ms without a connection
const kSilence = 45_000;    // ms without a byte; the server sends a comment every 15 s
const kPauses = [300, 700, 1500, 3000, 5000];

const sleep = (ms, signal) => new Promise((done, fail) => {
  const stop = () => { clearTimeout(timer); fail(signal.reason); };
  const timer = setTimeout(() => { signal.removeEventListener('abort', stop); done(); }, ms);
  if (signal.aborted) stop(); else signal.addEventListener('abort', stop, { once: true });
});

// The caller's signal, and one that ends a connection on which nothing comes.
function watched(signal) {
  const own = new AbortController();
  let timer = 0;
  const alive = () => {
    clearTimeout(timer);
    timer = setTimeout(() => own.abort(new Error('silent')), kSilence);
  };
  alive();
  return { signal: AbortSignal.any([signal, own.signal]), alive, end: () => clearTimeout(timer) };
}

const streamOf = (event) => '/v1/streams/' + event.split(':')[0];

// Yields {data, id}, and {lost: true}, {lost: false}, {restarted: true} when that happens: after the last
// one the answer begins anew. Throws ApiError with the server's words, or Error when it stays away.
// `last`: the id of the last event, where a stream is taken up that an earlier page began.
export async function* answer(path, body, signal, last = '') {
  let begun = last !== '';   // some of the answer has been yielded
  let resumable = true, restarts = 0, lostAt = 0, tries = 0;
  for (;;) {
    const watch = watched(signal);
    let why = new Error('The server cannot be reached.');
    try {
      const options = resumable ? { ...body.stream_options, resumable: true } : body.stream_options;
      const response = await (last
        ? call(streamOf(last), { headers: { 'Last-Event-ID': last }, signal: watch.signal })
        : call(path, { body: { ...body, stream_options: options }, signal: watch.signal }));
      if (lostAt) yield { lost: false };
      lostAt = tries = 0;
      for await (const { data, id } of events(response, watch.alive)) {
        if (data === '[DONE]') return;
        if (id) last = id;
        begun = true;
        yield { data, id };
      }
    } catch (e) {
      if (signal.aborted) {  // the server would wait for us to come back
        if (last) call(streamOf(last), { method: 'DELETE' }).catch(() => {});
        throw e;
      }
      if (e instanceof ApiError) {
        if (e.code === 'not_enabled' && resumable) {  // serve --resume-seconds 0
          resumable = false;
          continue;
        }
        if (last && (e.status === 404 || e.status === 410)) last = '';
        else if (e.status === 503) why = e;
        else throw e;
      }
    } finally {
      watch.end();
    }
    if (begun && !last) {  // nobody has the rest of it
      if (++restarts > 1) throw new Error('The server was lost again while it answered.');
      begun = false;
      yield { restarted: true };
    }
    lostAt ||= Date.now();
    if (Date.now() - lostAt > kGiveUp) throw why;
    yield { lost: true };
    await sleep(kPauses[Math.min(tries++, kPauses.length - 1)], signal);
  }
}
