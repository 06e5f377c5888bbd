#include "tools/cli_route.h"

#include "tools/cli_options.h"

namespace sluice {

namespace {

void add_members(CLI::App* s, RouteOptions& o) {
  s->add_option("--worker", o.workers,
                "http[s]://HOST:PORT of a server (may be repeated). Those of\nserve --role prefill "
                "compute prompts for those of --role decode")
      ->allow_extra_args(false);
  s->add_option("--workers-dns", o.workers_dns,
                "NAME:PORT: every address of the name is a server too, looked up\nevery 2 s; those "
                "that are gone finish what they have");
  CLI::Option* etcd =
      s->add_option(
           "--etcd", o.etcd,
           "http[s]://HOST:PORT of an etcd server (may be repeated): servers that\nare there "
           "(serve --register) join, and those whose lease ends leave")
          ->allow_extra_args(false)
          ->excludes("--workers-dns");
  s->add_option("--etcd-prefix", o.etcd_prefix, "of their keys")
      ->capture_default_str()
      ->needs(etcd);
}

}  // namespace

void add_route(CLI::App& app, CommandLine& c) {
  RouteOptions& o = c.route;
  CLI::App* s = app.add_subcommand("route", "one address for several servers");
  add_members(s, o);
  add_named(s, "--policy", o.policy, kRoutings,
            "which worker gets a request. cache-aware: the one that is predicted\nto answer "
            "first, by its queue and the prefixes that it was sent; or two, one for\nthe prompt. "
            "Others split every prompt where roles allow it");
  CLI::Option* events =
      s->add_flag("--kv-events", o.kv_events,
                  "follow the KV events of workers that publish them with\n--kv-events and "
                  "--kv-events-replay: what they have cached is then\nknown, not assumed");
  s->add_option("--kv-events-key", o.kv_event_key,
                "CURVE keys for that: a line \"secret KEY\", the router's, and a\nline \"server "
                "KEY\", the workers' public one")
      ->needs(events);
  s->add_flag_callback(
      "--no-prefix-fetch", [&o] { o.fetch = false; },
      "workers of --role both and decode are not told to fetch cached\nprefixes from one another");
  s->add_flag("--balance-roles", o.balance,
              "workers of --role both compute prompts for others, or decode, as the\nmix of "
              "requests asks for; needs --slo");
  s->add_option("--slo", o.slo,
                "objectives, like ttft=2s,tpot=50ms: requests that are predicted to\nmiss them get "
                "429 and Retry-After");
  s->add_option("--cost", o.cost,
                "what steps cost on a worker, by `plan calibrate` (default: an\nassumption; both "
                "are corrected by what is seen)");
  s->add_option("--budget", o.budget, "tokens of a worker's step")
      ->check(whole_number(1, 1 << 20))
      ->capture_default_str();
  s->add_option("--session-header", o.session_header,
                "header that names a session, which stays with its worker (else\nthe fields user "
                "and prompt_cache_key do)")
      ->capture_default_str();
  s->add_option("--tries", o.tries, "workers that a request is sent to, before its first byte")
      ->check(whole_number(1, 64))
      ->capture_default_str();
  s->add_option("--host", o.host, "address to listen on")->capture_default_str();
  s->add_option("-p,--port", o.port, "port; 0: any free one")
      ->check(whole_number(0, 65535))
      ->capture_default_str();
  s->add_flag("--allow-no-key", o.allow_others,
              "listen where others can connect, though the router checks no keys");
  s->add_option("--tls-cert", o.tls_cert, "certificate chain (PEM)");
  s->add_option("--tls-key", o.tls_key, "its private key (PEM)");
  s->add_option("--ca", o.ca_file, "of https workers and etcd: a file of certificates to trust");
  const char* group = "Limits";
  s->add_option("--max-requests", o.max_requests, "answered at once; more get 503")
      ->check(whole_number(1, 1'000'000))
      ->capture_default_str()
      ->group(group);
  s->add_option("--max-held", o.max_held,
                "bytes of their bodies, with the copies on their way to workers\n(default: 512M)")
      ->transform(byte_size())
      ->group(group);
  s->add_option("--max-body", o.max_body, "bytes of one body (default: 8M)")
      ->transform(byte_size())
      ->group(group);
  s->add_option("--max-connections", o.max_connections, "clients")
      ->check(whole_number(1, 1'000'000))
      ->capture_default_str()
      ->group(group);
  s->add_option("--silence", o.silence,
                "seconds without a byte before a worker's answer is given up")
      ->check(number_in(0.1, 86400.0))
      ->capture_default_str()
      ->group(group);
  s->add_option("--grace", o.grace, "seconds that requests get to finish at a stop")
      ->check(number_in(0.0, 3600.0))
      ->capture_default_str()
      ->group(group);
  s->callback([&c] { c.action = [&c] { return cmd_route(c.route); }; });
}

}  // namespace sluice
