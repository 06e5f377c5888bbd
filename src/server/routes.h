// The table of routes, and what each does. They run on io threads; those that render a chat
// template and those with long bodies on a worker's.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "server/service.h"

namespace sluice {

struct Route {
  const char* method;
  const char* path;   // ends with / where more follows; * is one part of it
  bool open = false;  // needs no key
  void (*run)(Service&, Call);
  enum Kind : uint8_t { reads, generates } kind = reads;
  // What would hold up an io thread: a chat template, or the disk.
  enum Where : uint8_t { io, renderer, disk } where = io;
  ErrorStyle errors = ErrorStyle::openai;
};
std::span<const Route> routes();
// Where others' APIs have a route and ours only ids: 404, not "takes GET".
bool is_unserved(std::string_view path);

void serve_chat(Service& service, Call call);
void serve_messages(Service& service, Call call);
void serve_count_tokens(Service& service, Call call);
void serve_responses(Service& service, Call call);
void serve_response(Service& service, Call call);
void serve_response_end(Service& service, Call call);
void serve_file_upload(Service& service, Call call);
void serve_files(Service& service, Call call);
void serve_file(Service& service, Call call);
void serve_file_content(Service& service, Call call);
void serve_file_end(Service& service, Call call);
void serve_batch_create(Service& service, Call call);
void serve_batches(Service& service, Call call);
void serve_batch(Service& service, Call call);
void serve_batch_cancel(Service& service, Call call);
void serve_ollama_chat(Service& service, Call call);
void serve_ollama_generate(Service& service, Call call);
void serve_ollama_embed(Service& service, Call call);
void serve_ollama_tags(Service& service, Call call);
void serve_ollama_show(Service& service, Call call);
void serve_completion(Service& service, Call call);
void serve_embeddings(Service& service, Call call);
void serve_generate(Service& service, Call call);
void serve_stream(Service& service, Call call);
void serve_stream_end(Service& service, Call call);
void serve_tokenize(Service& service, Call call);
void serve_detokenize(Service& service, Call call);
void serve_tokenizer_info(Service& service, Call call);
void serve_models(Service& service, Call call);
void serve_model(Service& service, Call call);
void serve_health(Service& service, Call call);
void serve_ready(Service& service, Call call);
void serve_version(Service& service, Call call);
void serve_metrics(Service& service, Call call);
void serve_load(Service& service, Call call);
void serve_openapi(Service& service, Call call);
void serve_watch(Service& service, Call call);
void serve_request_story(Service& service, Call call);
void serve_own_story(Service& service, Call call);
void serve_requests(Service& service, Call call);
void serve_step_story(Service& service, Call call);
void serve_keep_recording(Service& service, Call call);
void serve_page_file(Service& service, Call call);
void serve_root(Service& service, Call call);

}  // namespace sluice
