// Tokenizers without a model: their speed, and their ids for comparing with other implementations.
//   tokenize_bench FILE --speed TEXT...   one JSON object per text file: load ms, MB/s
//   tokenize_bench FILE --ids < in.jsonl  a JSON string per line in, a line of ids out
// FILE: tokenizer.json, a SentencePiece .model, or a .gguf.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iostream>
#include <sstream>

#include "base/json.h"
#include "base/str.h"
#include "load/open.h"
#include "load/vocab.h"
#include "text/detokenizer.h"

namespace sluice {
namespace {

// Processor time: this program has one thread, and the machine may have other work.
double now() {
  timespec t = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

std::string read_all(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

Result<std::unique_ptr<Tokenizer>> load(const std::string& path) {
  if (path.ends_with(".gguf")) {
    auto file = open_model(path, "q8_0", 0);
    if (!file) return file.error();
    return load_tokenizer(**file);
  }
  Meta meta;
  const char* key =
      path.ends_with(".model") ? "tokenizer.sentencepiece.model" : "tokenizer.huggingface.json";
  meta.set(key, read_all(path));
  return tokenizer_from_meta(meta);
}

// Best of enough rounds to fill half a second.
int measure(const Tokenizer& t, const std::string& path, double load_ms) {
  std::string text = read_all(path);
  // A .jsonl file is many short texts.
  std::vector<std::string> texts;
  if (path.ends_with(".jsonl")) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) texts.push_back(line);
  } else {
    texts.push_back(text);
  }
  size_t bytes = 0, tokens = 0;
  for (const std::string& s : texts) bytes += s.size();
  double best = 1e9, total = 0;
  for (int round = 0; round < 3 || total < 0.5; ++round) {
    const double start = now();
    tokens = 0;
    for (const std::string& s : texts) {
      auto ids = t.encode(s, {}, true);
      if (!ids) {
        std::fprintf(stderr, "%s\n", ids.error().message.c_str());
        return 1;
      }
      tokens += ids->size();
    }
    double took = now() - start;
    best = std::min(best, took);
    total += took;
  }
  std::printf(
      "{\"text\": \"%s\", \"load_ms\": %.1f, \"bytes\": %zu, \"tokens\": %zu, "
      "\"mb_per_s\": %.2f}\n",
      path.c_str(), load_ms, bytes, tokens, static_cast<double>(bytes) / best / 1e6);
  return 0;
}

// A JSON string per line, all of it trusted.
int print_ids(const Tokenizer& t) {
  for (std::string line; std::getline(std::cin, line);) {
    auto parsed = parse_json(line);
    if (!parsed || !parsed->is_string()) {
      std::fprintf(stderr, "not a JSON string: %s\n", quote(line).c_str());
      return 2;
    }
    auto ids = t.encode(parsed->get_string(), {}, true);
    if (!ids) {
      std::printf("error: %s\n", ids.error().message.c_str());
      continue;
    }
    std::string out;
    for (Token id : *ids) out += strf("%d ", id);
    std::printf("%s\n", out.c_str());
  }
  return 0;
}

int run(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: tokenize_bench FILE --speed TEXT... | FILE --ids\n");
    return 2;
  }
  const double start = now();
  auto tokenizer = load(argv[1]);
  double load_ms = (now() - start) * 1e3;
  if (!tokenizer) {
    std::fprintf(stderr, "%s\n", tokenizer.error().message.c_str());
    return 2;
  }
  if (std::string_view(argv[2]) == "--ids") return print_ids(**tokenizer);
  for (int i = 3; i < argc; ++i) {
    if (int rc = measure(**tokenizer, argv[i], load_ms); rc != 0) return rc;
  }
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) { return sluice::run(argc, argv); }
