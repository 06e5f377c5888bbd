#include "backend/gemm_choices.h"

#include <unistd.h>

#include <cmath>
#include <fstream>
#include <optional>
#include <sstream>

#include "base/named.h"

namespace sluice {

namespace {

constexpr const char* kFirstWord = "sluice-gemm";

constexpr NamedValue<DType> kGemmTypes[] = {{"f32", DType::f32},
                                            {"f16", DType::f16},
                                            {"bf16", DType::bf16},
                                            {"f8", DType::f8},
                                            {"i8", DType::i8}};

constexpr NamedValue<GemmKernel> kGemmKernels[] = {{"cublas", GemmKernel::cublas},
                                                   {"skinny", GemmKernel::skinny},
                                                   {"tall", GemmKernel::tall},
                                                   {"narrow", GemmKernel::narrow},
                                                   {"wide", GemmKernel::wide}};

struct Line {
  GemmKey key;
  GemmChoice choice;
};

// rows cols bucket type out bias wide coded kernel splits microseconds, then the algorithm's words
std::optional<Line> read_line(const std::string& text) {
  std::istringstream in(text);
  Line line;
  std::string type, out, kernel, rest;
  in >> line.key.rows >> line.key.cols >> line.key.bucket >> type >> out >> line.key.bias >>
      line.key.wide >> line.key.coded >> kernel >> line.choice.splits >> line.choice.microseconds;
  for (uint64_t& word : line.choice.algo) in >> word;
  if (in.fail() || in >> rest) return std::nullopt;

  const auto weight_type = value_named(kGemmTypes, type), out_type = value_named(kGemmTypes, out);
  const auto known = value_named(kGemmKernels, kernel);
  const int splits = line.choice.splits;
  const bool possible =
      splits == 1 || ((known == GemmKernel::narrow || known == GemmKernel::wide) &&
                      (splits == 2 || splits == 3 || splits == 4 || splits == 8));
  const bool timed = std::isfinite(line.choice.microseconds) && line.choice.timed();
  if (!weight_type || !out_type || !known || !possible || !timed) return std::nullopt;
  line.key.type = *weight_type;
  line.key.out = *out_type;
  line.choice.kernel = *known;
  return line;
}

}  // namespace

std::string GemmChoices::text() const {
  std::ostringstream out;
  out << kFirstWord << ' ' << kVersion << '\n';
  for (const auto& [k, c] : choices_) {
    if (!c.timed()) continue;
    out << k.rows << ' ' << k.cols << ' ' << k.bucket << ' ' << name_of(kGemmTypes, k.type) << ' '
        << name_of(kGemmTypes, k.out) << ' ' << k.bias << ' ' << k.wide << ' ' << k.coded << ' '
        << name_of(kGemmKernels, c.kernel) << ' ' << c.splits << ' ' << c.microseconds;
    for (uint64_t word : c.algo) out << ' ' << word;
    out << '\n';
  }
  return out.str();
}

void GemmChoices::add(std::string_view text) {
  std::istringstream in{std::string(text)};
  std::string first;
  std::getline(in, first);
  if (first != std::string(kFirstWord) + ' ' + std::to_string(kVersion)) return;
  for (std::string text_line; std::getline(in, text_line);) {
    if (const std::optional<Line> line = read_line(text_line)) set(line->key, line->choice);
  }
}

void GemmChoices::load(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::ostringstream text;
  if (in && text << in.rdbuf()) add(text.str());
}

void GemmChoices::save(const std::filesystem::path& path) const {
  std::error_code ignored;
  std::filesystem::create_directories(path.parent_path(), ignored);
  const std::filesystem::path partial = path.string() + "." + std::to_string(getpid());
  bool written = false;
  {
    std::ofstream out(partial);
    out << text();
    out.flush();
    written = static_cast<bool>(out);
  }
  if (written) {
    std::filesystem::rename(partial, path, ignored);
  } else {
    std::filesystem::remove(partial, ignored);
  }
}

}  // namespace sluice
