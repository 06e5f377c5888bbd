// The options of `sluice serve` beside the engine's.
#include "tools/cli_options.h"

#include "base/str.h"
#include "core/slo_budget.h"
#include "dialect/format.h"
#include "server/openai.h"

namespace sluice {

namespace {

// Adds options of one group of the help text, with their defaults.
struct Group {
  CLI::App* app;
  const char* name;

  CLI::Option* operator()(const char* option, auto& to, const char* help) const {
    return app->add_option(option, to, help)->capture_default_str()->group(name);
  }
};

// Where the server listens, and to whom.
void add_access_options(CLI::App* app, ServeOptions& o, const char* server) {
  const Group add{app, server};
  add("--host", o.host, "address to listen on");
  add("--port", o.port, "port to listen on; 0 is any free one")->check(whole_number(0, 65535));
  app->add_option("--grpc-port", o.grpc_port,
                  "also speak vLLM's gRPC service, for Dynamo, on this port;\n0 is any free one")
      ->check(whole_number(0, 65535))
      ->group(server);
  add("--served-model-name", o.served_names, "name in the API (may be repeated)")
      ->allow_extra_args(false);
  add("--api-key-file", o.api_key_file,
      "one key per line; a request must carry one of\nthem; read again on SIGHUP");
  add("--tls-cert", o.tls_cert,
      "speak HTTPS: the certificate with its chain,\nin PEM form; read again on SIGHUP");
  add("--tls-key", o.tls_key, "its private key, in PEM form without a password");
  add("--allowed-hosts", o.allowed_hosts,
      "host names that requests may name, besides localhost,\naddresses and --host (may be "
      "repeated;\n"
      "* is any, and so it is when keys are needed): a page\nwhose name leads here is refused "
      "otherwise")
      ->delimiter(',')
      ->allow_extra_args(false);
  add("--cors", o.cors,
      "origins whose pages may use the API, such as\nhttps://example.org (may be repeated; * is "
      "any)")
      ->delimiter(',')
      ->allow_extra_args(false);
  app->add_flag("--allow-no-key", o.allow_no_key, "listen beyond this machine without a key")
      ->group(server);
  app->add_flag("--allow-request-template", o.allow_request_template,
                "a request may bring its own chat_template")
      ->group(server);
  app->add_flag("--allow-tokenizer-info", o.allow_tokenizer_info,
                "/tokenizer_info shows special tokens and the chat template")
      ->group(server);
}

// One of the formats' names, or none; the help lists them in short lines.
CLI::Option* add_format(
    CLI::App* app, const char* option, std::string& to, const auto& formats, std::string help) {
  std::vector<std::string> names{"none"};
  size_t width = 100;
  for (const auto& f : formats) names.emplace_back(f.name);
  for (const std::string& name : names) {
    width += name.size() + 2;
    if (width > 52) {
      help += "\n";
      width = name.size();
    } else {
      help += " ";
    }
    help += name + (name == names.back() ? "" : ",");
  }
  return app->add_option(option, to, help)->check(CLI::IsMember(names));
}

void add_answer_options(CLI::App* app, ServeOptions& o, const char* server) {
  const Group add{app, server};
  add_generation_config(app, o.engine, server);
  app->add_flag("--log-requests,!--no-log-requests", o.log_requests,
                "one line in the log per request, without its text\n(on by default)")
      ->group(server);
  add_named(app, "--pooling", o.pooling, kPoolings,
            "hidden states of which positions /v1/embeddings gives")
      ->group(server);
  add_format(app, "--tool-format", o.formats.tools, dialect::tool_formats(),
             "how the model writes tool calls (default: by its chat\ntemplate):")
      ->group(server);
  add_format(app, "--reasoning-format", o.formats.reasoning, dialect::think_formats(),
             "how it writes its thinking (default: by its chat template):")
      ->group(server);
  add("--ping", o.ping, "seconds of silence until a stream gets a comment; 0 is never")
      ->check(CLI::NonNegativeNumber);
  add("--resume-seconds", o.resume,
      "how long a resumable stream waits for its client to\ncome back; 0 is never")
      ->check(CLI::NonNegativeNumber);
  add("--batch-dir", o.batch_dir,
      "folder for files and batches, which go on there after\na restart: turns /v1/files and "
      "/v1/batches on");
  add("--batch-bytes", o.batch_bytes, "size of all files there, at most")->transform(byte_size());
  app->add_flag("!--no-warm-up", o.warm_up,
                "listen before a first prompt has run: the first request pays\nfor cold code and "
                "memory")
      ->group(server);
  add("--io-threads", o.io_threads, "threads for connections and text")->check(whole_number(1, 64));
  add("--grace", o.grace, "seconds that running requests have after SIGTERM")
      ->check(CLI::NonNegativeNumber);
}

// What requests may take together, per key and each.
void add_admission_options(CLI::App* app, ServeOptions& o, const char* server) {
  const Group add{app, server};
  Load &all = o.admission.total, &key = o.admission.per_key, &one = o.admission.per_request;
  app->add_option("--max-queue", o.max_queue,
                  "sequences (prompts x n) that may wait for their first\ntoken (default: 512; no "
                  "limit on a loopback address,\nwhere only tokens count)")
      ->check(whole_number(1, kMaxInt))
      ->group(server);
  add("--max-queue-tokens", all.tokens, "prompt tokens that may wait")->check(CLI::PositiveNumber);
  add("--max-answers", all.bytes, "bytes of answers that are not streamed, at most")
      ->transform(byte_size());
  add("--max-queue-per-key", key.sequences, "waiting sequences of one key; 0 is no limit")
      ->check(whole_number(0, kMaxInt));
  add("--max-queue-tokens-per-key", key.tokens, "waiting prompt tokens of one key; 0 is no limit")
      ->check(CLI::NonNegativeNumber);
  add("--max-answers-per-key", key.bytes, "bytes of one key's answers; 0 is no limit")
      ->transform(byte_size());
  add("--max-request-sequences", one.sequences, "sequences (prompts x n) of one request")
      ->check(whole_number(1, kMaxInt));
  add("--max-answer", one.bytes, "bytes of one answer that is not streamed")
      ->transform(byte_size());
  add("--request-share", o.request_share,
      "share of --max-seqs that one request's sequences may have\nwhile it holds more")
      ->check(CLI::Range(0.0, 1.0));
  add("--request-timeout", o.request_timeout, "seconds a request may take; 0 is no limit")
      ->check(CLI::NonNegativeNumber);
}

void add_connection_options(CLI::App* app, ServeOptions& o, const char* limits) {
  const Group add{app, limits};
  add("--max-body", o.max_body, "size of a request")->transform(byte_size());
  add("--max-connections", o.max_connections, "in all")->check(whole_number(1, kMaxInt));
  app->add_option("--max-connections-per-ip", o.max_connections_per_ip,
                  "from one address (default: 256, and no limit from\nthis machine)")
      ->check(whole_number(1, kMaxInt))
      ->group(limits);
  add("--header-timeout", o.header_timeout,
      "seconds for a request's header, or for\nthe handshake of TLS")
      ->check(CLI::PositiveNumber);
  add("--body-timeout", o.body_timeout, "seconds for its body")->check(CLI::PositiveNumber);
  add("--idle-timeout", o.idle_timeout, "seconds between requests")->check(CLI::PositiveNumber);
  add("--send-timeout", o.send_timeout, "seconds a client may not read")
      ->check(CLI::PositiveNumber);
  add("--min-read-rate", o.min_read_rate,
      "bytes per second that a client must read, once an\nanswer waits for it")
      ->transform(byte_size());
  add("--max-unread", o.max_unread, "bytes of answers that may wait for all clients")
      ->transform(byte_size());
  add("--stall-timeout", o.stall_timeout,
      "seconds without a sign of life of a thread\nuntil /health fails")
      ->check(CLI::PositiveNumber);
}

void add_record_options(CLI::App* app, EngineOptions& o, const char* group) {
  CLI::Option* record =
      app->add_option("--record", o.record_dir,
                      "record what the scheduler is told and plans, as a ring of files in\nthis "
                      "folder (see `sluice replay`); SIGUSR1 keeps what is there")
          ->group(group);
  app->add_option("--record-size", o.record_bytes, "bytes of that ring, like 1G")
      ->transform(byte_size())
      ->default_str("256M")
      ->needs(record)
      ->group(group);
  app->add_flag("--record-text", o.record_text,
                "record tokens as they are: all that users send and get is in the\nfiles (default: "
                "pseudonyms, which suffice to replay the schedule)")
      ->needs(record)
      ->group(group);
}

void add_kv_event_options(CLI::App* app, ServeOptions& o, const char* group) {
  auto add = [&](const char* name, std::string& to, const char* help) {
    return app->add_option(name, to, help)->group(group);
  };
  CLI::Option* events =
      add("--kv-events", o.kv_events.sockets.publish,
          "publish which prefixes are cached, for routers, on a ZeroMQ\nsocket like "
          "tcp://127.0.0.1:5557; they carry prompts");
  add("--kv-events-replay", o.kv_events.sockets.replay,
      "answer those who missed events, on a socket like\ntcp://127.0.0.1:5558")
      ->needs(events);
  app->add_option("--kv-events-buffer", o.kv_events.kept, "messages kept for that")
      ->check(whole_number(1, 1 << 20))
      ->capture_default_str()
      ->needs(events)
      ->group(group);
  add("--kv-events-topic", o.kv_events.sockets.topic,
      "topic of the events (default: the empty one)")
      ->needs(events);
  add("--kv-events-key", o.kv_events.sockets.key_file,
      "CURVE keys: a line \"secret KEY\" and a line \"client KEY\" for\neach subscriber's public "
      "key; needed beyond this machine")
      ->needs(events);
}

void add_registration_options(CLI::App* app, EtcdRegistration::Options& o, const char* group) {
  CLI::Option* to = app->add_option("--register", o.servers,
                                    "http[s]://HOST:PORT of an etcd server (may be repeated): "
                                    "routers\nwith --etcd find this server there, until its lease "
                                    "ends")
                        ->allow_extra_args(false)
                        ->group(group);
  auto add = [&](const char* name, auto& value, const char* help) {
    return app->add_option(name, value, help)->capture_default_str()->needs(to)->group(group);
  };
  add("--register-as", o.address,
      "http://ADDRESS:PORT that routers reach this server by (default:\nas it listens)");
  add("--register-prefix", o.prefix, "of its key");
  add("--register-lease", o.seconds,
      "whole seconds after which a server that is dead is gone there")
      ->check(CLI::Range(5, 3600));
  add("--register-ca", o.ca_file, "of https: a file of certificates to trust");
}

void add_transfer_options(CLI::App* app, KvTransfer::Options& o, const char* group) {
  CLI::Option* role = add_named(app, "--role", o.role, kKvRoles,
                                "prefill: computes prompts for other servers, which fetch their "
                                "K\nand V; decode: fetches them; "
                                "both. In vLLM's protocol\n(kv_transfer_params)")
                          ->group(group);
  auto add = [&](const char* name, auto& to, const char* help) {
    return app->add_option(name, to, help)->capture_default_str()->needs(role)->group(group);
  };
  add("--kv-host", o.host, "address of this server that the others connect to");
  add("--kv-port", o.port, "port for them; 0 is any free one")->check(whole_number(0, 65535));
  add("--kv-key", o.key_file,
      "file with a key that all of them share, 16 bytes or more;\nneeded beyond this machine, and "
      "for cached prefixes");
  add("--kv-lease", o.lease_seconds, "seconds that a prompt's K and V are kept for them")
      ->check(CLI::Range(0.1, 3600.0));
  add_named(app, "--kv-transport", o.transport, kTransports,
            "tcp; shm: shared memory on one machine, TCP between machines; ucx:\nTCP or RDMA by "
            "UCX's choice, on all of them or none; auto: ucx\nwhere it is installed")
      ->needs(role)
      ->group(group);
  add_named(app, "--kv-leave", o.leave, kKvLeaves,
            "layers: K and V leave as layers are computed; steps: as steps\nend; auto: layers on a "
            "CPU, steps on a GPU")
      ->needs(role)
      ->group(group);
}

void add_prediction_options(CLI::App* app, ServeOptions& o) {
  CLI::Option* cost = app->add_option(
      "--cost", o.cost,
      "what steps take: a file of `plan calibrate` (*.json) with the\nsame model and options, or a "
      "device (cpu, h200, ...) to derive\nit from. --slo starts from it; requests whose first "
      "token is\npredicted to come after --ttft-limit or their deadline get 429");
  app->add_option_function<std::string>(
         "--ttft-limit", [&o](const std::string& text) { o.engine.ttft_limit = *parse_time(text); },
         "the latest first token, like 2s: requests that would wait longer\nare refused with a "
         "Retry-After (default: none)")
      ->check(CLI::Validator(
          [](const std::string& text) {
            auto ok = parse_time(text);
            return ok ? std::string() : ok.error().message;
          },
          ""))
      ->needs(cost);
}

}  // namespace

void add_serve_options(CLI::App* app, ServeOptions& o) {
  app->add_option("model", o.engine.model, kModelOrShapeHelp)->required();
  app->add_option(
      "--simulate", o.simulate,
      "compute nothing: steps take as long as on this device (h200,\nl4, ...), or as a "
      "file of `plan calibrate` (*.json) says;\noutputs are arbitrary words. For trying "
      "routers and capacity");
  add_prediction_options(app, o);
  const char* server = "Server";
  add_access_options(app, o, server);
  add_answer_options(app, o, server);
  add_admission_options(app, o, server);
  add_connection_options(app, o, "Limits of connections");
  add_record_options(app, o.engine, "Recording");
  add_kv_event_options(app, o, "KV events");
  add_transfer_options(app, o.transfer, "Prefill and decode apart");
  add_registration_options(app, o.registration, "etcd");
}

}  // namespace sluice
