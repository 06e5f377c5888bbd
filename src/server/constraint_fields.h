// The request fields that say which texts an answer may be: OpenAI's response_format, vLLM's
// structured_outputs and guided_*, llama.cpp's grammar and json_schema, SGLang's regex, ebnf and
// structural_tag, TGI's grammar. Each becomes one ConstraintSource; it is compiled later. Pure
// functions, any thread.
#pragma once

#include "server/fields.h"

namespace sluice {

// Of /v1/chat/completions and /v1/completions. Two constraints at once are refused.
void read_constraint(Fields& fields, GenerateFields& out);
// Of the `parameters` of /models/NAME/generate.
void read_tgi_constraint(Fields& parameters, GenerateFields& out);
// Refuses fields that would leave an answer constrained by the field `by` without a token to go on
// with. After they have been read.
void check_constrained(Fields& fields, const GenerateFields& given, const std::string& by);

}  // namespace sluice
