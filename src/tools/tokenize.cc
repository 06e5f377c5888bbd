// sluice tokenize: text to ids and back.
#include <cstdio>
#include <sstream>

#include "base/json.h"
#include "base/str.h"
#include "load/open.h"
#include "text/detokenizer.h"
#include "tools/commands.h"
#include "tools/locate_model.h"
#include "tools/terminal.h"

namespace sluice {

namespace {

Result<std::vector<Token>> parse_ids(const std::string& text, int vocab) {
  std::string plain = text;
  for (char& c : plain) {
    if (c == ',' || c == '[' || c == ']') c = ' ';
  }
  std::istringstream in(plain);
  std::vector<Token> ids;
  for (std::string word; in >> word;) {
    char* end = nullptr;
    long long id = std::strtoll(word.c_str(), &end, 10);
    if (*end != 0 || id < 0 || id >= vocab) {
      return Error{400, strf("%s is not a token id from 0 to %d", quote(word).c_str(), vocab - 1)};
    }
    ids.push_back(static_cast<Token>(id));
  }
  return ids;
}

int decode(const Tokenizer& tokenizer, const std::string& text, const TokenizeOptions& o) {
  Result<std::vector<Token>> ids = parse_ids(text, tokenizer.size());
  if (!ids) return report(ids.error());
  std::string out =
      detokenize(tokenizer, *ids,
                 {.skip_special = o.no_special, .strip_leading_space = tokenizer.adds_space()});
  if (o.json) {
    std::printf("%s\n", json::serialize(json::object{{"text", out}}).c_str());
  } else {
    std::fwrite(out.data(), 1, out.size(), stdout);
    std::printf("\n");
  }
  return kExitOk;
}

}  // namespace

int cmd_tokenize(const TokenizeOptions& o) {
  if (o.has_text && !o.file.empty()) return report({400, "give a text or -f FILE, not both"});
  Result<std::string> path = locate_model(o.model);
  if (!path) return report(path.error());
  Result<std::unique_ptr<Checkpoint>> checkpoint = open_text(*path);
  if (!checkpoint) return report(checkpoint.error());
  if (!has_vocabulary(**checkpoint)) return report({400, "the model has no vocabulary"});
  Result<std::unique_ptr<Tokenizer>> tokenizer = load_tokenizer(**checkpoint);
  if (!tokenizer) return report(tokenizer.error());
  std::string text = o.text;
  if (!o.has_text) {
    Result<std::string> read = read_text(o.file.empty() ? "-" : o.file);
    if (!read) return report(read.error());
    text = std::move(*read);
  }
  if (o.decode) return decode(**tokenizer, text, o);

  Result<std::vector<Token>> ids =
      (*tokenizer)->encode(text, {.add_special = !o.no_special}, o.parse_special);
  if (!ids) return report(ids.error());
  if (o.json) {
    json::array tokens, pieces;
    for (Token t : *ids) {
      tokens.push_back(t);
      pieces.push_back(json::string((*tokenizer)->spelling(t)));
    }
    size_t count = ids->size();
    std::printf("%s\n", json::serialize(json::object{{"tokens", std::move(tokens)},
                                                     {"pieces", std::move(pieces)},
                                                     {"count", count}})
                            .c_str());
  } else {
    for (size_t i = 0; i < ids->size(); ++i) std::printf("%s%d", i ? " " : "", (*ids)[i]);
    std::printf("\n");
  }
  return kExitOk;
}

}  // namespace sluice
