// Runs in the page before its own scripts: answers some requests from the test instead of the server.
// `script.answer(path, options)` returns a Response or null (the server's turn). What was posted is in
// `script.sent`. `script.stream()` is a response whose events the test writes as it likes.
(() => {
  const real = window.fetch.bind(window);
  const text = new TextEncoder();
  window.script = {
    sent: [],
    answer: () => null,
    stream() {
      let out;
      const body = new ReadableStream({ start(c) { out = c; } });
      const number = { last: 0 };
      return {
        response: new Response(body, { status: 200, headers: { 'Content-Type': 'text/event-stream' } }),
        event(name, data) { out.enqueue(text.encode(`event: ${name}\ndata: ${JSON.stringify(data)}\n\n`)); },
        chunk(content, more = {}) {
          const data = { id: 'chatcmpl-scripted', choices: [{ index: 0, delta: { content }, finish_reason: null, ...more }] };
          out.enqueue(text.encode(`id: chatcmpl-scripted:${++number.last}\ndata: ${JSON.stringify(data)}\n\n`));
        },
        end(reason = 'stop') {
          this.chunk('', { finish_reason: reason });
          out.enqueue(text.encode('data: [DONE]\n\n'));
          out.close();
        },
        fail(message) {
          out.enqueue(text.encode(`data: ${JSON.stringify({ error: { message } })}\n\n`));
          out.close();
        },
      };
    },
  };
  window.fetch = async (path, options = {}) => {
    if (options.method === 'POST') window.script.sent.push(JSON.parse(options.body));
    return (await window.script.answer(path, options)) ?? real(path, options);
  };
})();
