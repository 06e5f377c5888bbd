#include "constrain/formats.h"

namespace sluice::constrain {

namespace {

// Days by month, with 29 February in leap years. There is no year 0000: many readers of dates
// refuse it.
#define SLUICE_YEAR "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
#define SLUICE_DATE                                                                     \
  "(?:" SLUICE_YEAR                                                                     \
  "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]" \
  "|30)"                                                                                \
  "|02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])"          \
  "|(?:0[48]|[2468][048]|[13579][26])00)-02-29)"
#define SLUICE_TIME                                                                                \
  "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[" \
  "0-5][0-9])"
#define SLUICE_LABEL "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
#define SLUICE_HOST SLUICE_LABEL "(?:\\." SLUICE_LABEL "){0,3}"
#define SLUICE_OCTET "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define SLUICE_IPV4 "(?:" SLUICE_OCTET "\\.){3}" SLUICE_OCTET
#define SLUICE_H16 "[0-9a-fA-F]{1,4}"
#define SLUICE_PCHAR "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
#define SLUICE_PATH "(?:/" SLUICE_PCHAR "*)*"
#define SLUICE_QUERY "(?:\\?(?:" SLUICE_PCHAR "|[/?])*)?(?:#(?:" SLUICE_PCHAR "|[/?])*)?"
#define SLUICE_AUTHORITY                                                                           \
  "(?:(?:[A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})*@)?(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-" \
  "f]{2})*(?::[0-9]{0,5})?"
#define SLUICE_POINTER "(?:/(?:[^~/]|~[01])*)*"

constexpr FormatRow kFormats[] = {
    {"date", SLUICE_DATE},
    {"time", SLUICE_TIME},
    {"date-time", SLUICE_DATE "[Tt]" SLUICE_TIME},
    {"duration",
     "P(?:[0-9]{1,9}W|(?:[0-9]{1,9}Y(?:[0-9]{1,9}M(?:[0-9]{1,9}D)?)?|[0-9]{1,9}M(?:[0-9]{1,9}D)?|"
     "[0-9]{1,9}D)(?:T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|"
     "[0-9]{1,9}S))?|T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|"
     "[0-9]{1,9}S))"},
    {"email",
     "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+){0,8}@" SLUICE_HOST},
    {"hostname", SLUICE_HOST},
    {"ipv4", SLUICE_IPV4},
    {"ipv6",
     "(?:" SLUICE_H16 ":){7}" SLUICE_H16 "|(?:" SLUICE_H16 ":){6}" SLUICE_IPV4 "|::(?:" SLUICE_H16
     "(?::" SLUICE_H16 "){0,5})?"
     "|(?:" SLUICE_H16 ":){1}(?::" SLUICE_H16 "){1,5}|" SLUICE_H16 "::"
     "|(?:" SLUICE_H16 ":){2}(?::" SLUICE_H16 "){1,4}|" SLUICE_H16 "(?::" SLUICE_H16 "){1}::"
     "|(?:" SLUICE_H16 ":){3}(?::" SLUICE_H16 "){1,3}|" SLUICE_H16 "(?::" SLUICE_H16 "){2}::"
     "|(?:" SLUICE_H16 ":){4}(?::" SLUICE_H16 "){1,2}|" SLUICE_H16 "(?::" SLUICE_H16 "){3}::"
     "|(?:" SLUICE_H16 ":){5}:" SLUICE_H16 "|" SLUICE_H16 "(?::" SLUICE_H16 "){4}::"
     "|" SLUICE_H16 "(?::" SLUICE_H16 "){5}::"
     "|::(?:ffff:)?" SLUICE_IPV4},
    {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
    {"uri", "[A-Za-z][A-Za-z0-9+.-]*:(?://" SLUICE_AUTHORITY SLUICE_PATH "|/(?:" SLUICE_PCHAR
            "+" SLUICE_PATH ")?|" SLUICE_PCHAR "+" SLUICE_PATH "|)" SLUICE_QUERY},
    {"uri-reference",
     "(?:[A-Za-z][A-Za-z0-9+.-]*:(?://" SLUICE_AUTHORITY SLUICE_PATH "|/(?:" SLUICE_PCHAR
     "+" SLUICE_PATH ")?|" SLUICE_PCHAR "+" SLUICE_PATH "|)|//" SLUICE_AUTHORITY SLUICE_PATH
     "|/(?:" SLUICE_PCHAR "+" SLUICE_PATH
     ")?|(?:[A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{2})+" SLUICE_PATH "|)" SLUICE_QUERY},
    {"json-pointer", SLUICE_POINTER},
    {"relative-json-pointer", "(?:0|[1-9][0-9]*)(?:#|" SLUICE_POINTER ")"},
    {"uri-template",
     "(?:[A-Za-z0-9._~!$&()*+,;=:@/?#\\[\\]-]|%[0-9A-Fa-f]{2}|\\{[+#./"
     ";?&]?[A-Za-z0-9_]+(?:\\*|:[1-9][0-9]{0,3})?"
     "(?:,[A-Za-z0-9_]+(?:\\*|:[1-9][0-9]{0,3})?)*\\})*"},
    {"idn-email",
     "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+){0,8}@" SLUICE_HOST},
    {"idn-hostname", ""},
    {"iri", ""},
    {"iri-reference", ""},
    {"regex", ""},
};

}  // namespace

std::optional<FormatRow> find_format(std::string_view name) {
  for (const FormatRow& row : kFormats) {
    if (row.name == name) return row;
  }
  return std::nullopt;
}

}  // namespace sluice::constrain
