// Pages that stand by themselves: no script, no font, no network.
#pragma once

#include <string>

namespace jackscrew {

// Escapes a text for HTML.
std::string html_text(const std::string& text);

// A whole page of that title; `body` is HTML.
std::string html_page(const std::string& title, const std::string& body);

}  // namespace jackscrew
