#include "report/html_page.h"

#include <fmt/format.h>

#include "base/text.h"
#include "report/report_style.h"

namespace jackscrew {

std::string html_text(const std::string& text) {
  std::string out;
  for (const char c : without_controls(text)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string html_page(const std::string& title, const std::string& body) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width\"><title>{}</title>"
      "<style>{}</style></head><body>\n{}</body></html>\n",
      html_text(title), kReportStyle, body);
}

}  // namespace jackscrew
