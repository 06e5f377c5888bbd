#include "server/infill.h"

#include <algorithm>

namespace sluice {

namespace {

constexpr std::string_view kGapSpellings[][3] = {
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},  // Qwen, CodeGemma
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},        // StarCoder, Granite
    {"<fim-prefix>", "<fim-suffix>", "<fim-middle>"},        // SantaCoder
    {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"},  // DeepSeek
};

// As the file names them, or by spelling. Ordinary text of a vocabulary may spell a mark by chance:
// that is none.
std::optional<GapTokens> find_marks(const Tokenizer& tokenizer) {
  if (tokenizer.gap().known()) return tokenizer.gap();
  for (const auto& row : kGapSpellings) {
    std::optional<Token> ids[3];
    bool all = true;
    for (size_t i = 0; i < 3; ++i) {
      ids[i] = tokenizer.find(row[i]);
      all = all && ids[i] &&
            (tokenizer.is_control(*ids[i]) || tokenizer.type(*ids[i]) == TokenType::user_defined);
    }
    if (all) return GapTokens{*ids[0], *ids[1], *ids[2]};
  }
  return {};
}

}  // namespace

Refusal encode_gaps(const Service& service,
                    const CompletionFields& fields,
                    std::vector<std::vector<Token>>& out) {
  auto refuse = [](const char* message, const char* code = "") {
    return ApiError{400, message, "suffix", code};
  };
  const Tokenizer* tokenizer = service.session().tokenizer();
  std::optional<GapTokens> marks;
  if (tokenizer) marks = find_marks(*tokenizer);
  if (!marks)
    return refuse("suffix is not supported by this model: it has no tokens to fill in the middle",
                  "unsupported_parameter");
  const bool texts = std::ranges::all_of(
      fields.prompts, [](const PromptField& p) { return std::holds_alternative<std::string>(p); });
  if (!texts) return refuse("suffix needs a prompt of text, not token ids");
  if (fields.echo) return refuse("suffix does not go with echo");
  if (fields.truncate_prompt) return refuse("suffix does not go with truncate_prompt_tokens");
  auto append = [&](const std::string& text, const char* param,
                    std::vector<Token>& ids) -> Refusal {
    const TextSegment segment{text, false};
    if (Refusal refused = service.check_length({&segment, 1}, param, fields)) return refused;
    Result<std::vector<Token>> encoded = tokenizer->encode(text);
    if (!encoded) return ApiError{encoded.error().code, encoded.error().message, param, ""};
    ids.insert(ids.end(), encoded->begin(), encoded->end());
    return {};
  };
  for (const PromptField& prompt : fields.prompts) {
    std::vector<Token>& ids = out.emplace_back();
    if (fields.add_special_tokens && tokenizer->adds_bos()) ids.push_back(tokenizer->bos());
    ids.push_back(marks->prefix);
    Refusal refused = append(std::get<std::string>(prompt), "prompt", ids);
    ids.push_back(marks->suffix);
    if (!refused) refused = append(fields.suffix, "suffix", ids);
    if (refused) return refused;
    ids.push_back(marks->middle);
  }
  return {};
}

}  // namespace sluice
