// sluice perplexity: how well a model predicts a text. Non-overlapping windows of the context's
// size, each begun with BOS where the model uses one; every token but the first of a window is
// scored.
#include <cmath>
#include <cstdio>

#include "base/json.h"
#include "base/str.h"
#include "runtime/collect.h"
#include "tools/commands.h"
#include "tools/terminal.h"

namespace sluice {

int cmd_perplexity(const PerplexityOptions& o) {
  Result<std::string> text = read_text(o.file);
  if (!text) return report(text.error());
  EngineOptions engine = o.engine;
  int window = engine.ctx.value_or(kPerplexityWindow);
  engine.ctx = window + 1;  // the engine always samples one token after the prompt
  Result<std::unique_ptr<Session>> session = open_session(engine);
  if (!session) return report(session.error());
  Session& s = **session;
  if (!s.tokenizer()) return report({400, "the model has no vocabulary, so it cannot read text"});
  Result<std::vector<Token>> tokens = s.tokenizer()->encode(*text);
  if (!tokens) return report(tokens.error());
  bool bos = s.tokenizer()->adds_bos();
  size_t per_window = static_cast<size_t>(window) - (bos ? 1 : 0);
  size_t available = tokens->size() / per_window;
  size_t num =
      o.windows > 0 ? std::min<size_t>(available, static_cast<size_t>(o.windows)) : available;
  if (num == 0)
    return report(
        {400, strf("the text has %zu tokens, less than one window of %d", tokens->size(), window)});

  auto spec = std::make_shared<SamplingSpec>();
  spec->temperature = 0;
  spec->prompt_logprobs = 0;
  Collector collector(s.engine(), nullptr);
  for (size_t w = 0; w < num; ++w) {
    auto prompt = std::make_shared<std::vector<Token>>();
    if (bos) prompt->push_back(s.tokenizer()->bos());
    auto first = tokens->begin() + static_cast<ptrdiff_t>(w * per_window);
    prompt->insert(prompt->end(), first, first + static_cast<ptrdiff_t>(per_window));
    Request r;
    r.prompt = std::move(prompt);
    r.sampling = spec;
    r.max_new = 1;
    collector.submit(std::move(r));
  }
  StatusLine status(!engine.quiet);
  collector.wait({}, [&](size_t done, uint64_t) {
    status.show(strf("%s %zu of %zu windows",
                     progress_bar(static_cast<double>(done) / static_cast<double>(num)).c_str(),
                     done, num));
  });
  status.clear();

  double sum = 0, squares = 0;
  uint64_t count = 0;
  for (const RequestOutput& out : collector.outputs()) {
    if (out.refused) return report(*out.refused);
    for (const ScoredToken& t : out.prompt_logprobs) {
      double nll = -static_cast<double>(t.token.logprob);
      sum += nll;
      squares += nll * nll;
      ++count;
    }
  }
  auto n = static_cast<double>(count);
  double mean = sum / n;
  double error = std::sqrt(std::max(squares / n - mean * mean, 0.0) / n);
  if (o.json) {
    std::printf("%s\n", plain_json(json::object{{"model", o.engine.model},
                                                {"file", o.file},
                                                {"ctx", window},
                                                {"windows", num},
                                                {"bos", bos},
                                                {"tokens", count},
                                                {"nll", mean},
                                                {"nll_error", error},
                                                {"perplexity", std::exp(mean)},
                                                {"perplexity_error", std::exp(mean) * error}})
                            .c_str());
  } else {
    std::printf("perplexity %.4f +- %.4f (mean NLL %.5f, %llu tokens in %zu windows of %d, %s)\n",
                std::exp(mean), std::exp(mean) * error, mean,
                static_cast<unsigned long long>(count), num, window, bos ? "BOS first" : "no BOS");
  }
  return kExitOk;
}

}  // namespace sluice
