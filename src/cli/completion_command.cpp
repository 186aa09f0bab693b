#include "cli/commands.h"

namespace kvpack::cli {
namespace {

/// What may follow one command on a line.
struct Offer {
  std::string path;  ///< `kvpack store put`
  std::vector<const CLI::App*> commands;
  std::vector<const CLI::Option*> options;  ///< Those that begin with dashes.
};

void collect(const CLI::App& command, const std::string& path, std::vector<Offer>& offers) {
  Offer offer{path, {}, {}};
  for (const CLI::App* below : command.get_subcommands([](const CLI::App*) { return true; }))
    if (!below->get_name().empty()) offer.commands.push_back(below);
  for (const CLI::Option* option : command.get_options())
    if (option->nonpositional() && !option->get_group().empty()) offer.options.push_back(option);
  offers.push_back(offer);
  for (const CLI::App* below : offer.commands) collect(*below, path + " " + below->get_name(), offers);
}

std::vector<std::string> spellings(const CLI::Option& option) {
  std::vector<std::string> out;
  for (const std::string& name : option.get_snames()) out.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) out.push_back("--" + name);
  return out;
}

/// Works in zsh as well, after bashcompinit. Whatever is no command and no option is a file.
std::string bash_script(const std::vector<Offer>& offers) {
  std::string commands;
  std::string options;
  for (const Offer& offer : offers) {
    std::string names;
    for (const CLI::App* below : offer.commands) names += " " + below->get_name();
    if (!names.empty())
      commands += "    '" + offer.path + "') printf '%s'" + " '" + names.substr(1) + "' ;;\n";
    std::string dashed;
    for (const CLI::Option* option : offer.options)
      for (const std::string& spelling : spellings(*option)) dashed += " " + spelling;
    options +=
        "    '" + offer.path + "') printf '%s' '" + (dashed.empty() ? dashed : dashed.substr(1)) + "' ;;\n";
  }
  return "_kvpack_commands() {\n  case \"$1\" in\n" + commands +
         "  esac\n}\n"
         "_kvpack_options() {\n  case \"$1\" in\n" +
         options +
         "  esac\n}\n"
         "_kvpack() {\n"
         "  local current=${COMP_WORDS[COMP_CWORD]} line=kvpack word i\n"
         "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
         "    word=${COMP_WORDS[i]}\n"
         "    case \" $(_kvpack_commands \"$line\") \" in *\" $word \"*) line=\"$line $word\" ;; esac\n"
         "  done\n"
         "  COMPREPLY=()\n"
         "  case \"$current\" in\n"
         "    -*) COMPREPLY=($(compgen -W \"$(_kvpack_options \"$line\")\" -- \"$current\")) ;;\n"
         "    *) COMPREPLY=($(compgen -W \"$(_kvpack_commands \"$line\")\" -- \"$current\")) ;;\n"
         "  esac\n"
         "}\n"
         "complete -o default -o bashdefault -F _kvpack kvpack\n";
}

std::string zsh_script(const std::vector<Offer>& offers) {
  return "#compdef kvpack\nautoload -U +X bashcompinit && bashcompinit\n" + bash_script(offers);
}

/// In single quotes; of a description the first line.
std::string fish_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text.substr(0, text.find('\n'))) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out + "'";
}

std::string fish_script(const std::vector<Offer>& offers) {
  std::string out =
      "function __kvpack_at\n"
      "  set -l words (commandline -opc)\n"
      "  set -l line kvpack\n"
      "  for word in $words[2..-1]\n"
      "    contains -- \"$line $word\" $__kvpack_lines; and set line \"$line $word\"\n"
      "  end\n"
      "  test \"$line\" = \"$argv[1]\"\n"
      "end\n"
      "set -g __kvpack_lines";
  for (const Offer& offer : offers) out += " " + fish_quoted(offer.path);
  out += "\n";
  for (const Offer& offer : offers) {
    const std::string at = "complete -c kvpack -n " + fish_quoted("__kvpack_at \"" + offer.path + "\"");
    for (const CLI::App* below : offer.commands)
      out += at + " -f -a " + below->get_name() + " -d " + fish_quoted(below->get_description()) + "\n";
    for (const CLI::Option* option : offer.options) {
      out += at;
      for (const std::string& name : option->get_snames()) out += " -s " + name;
      for (const std::string& name : option->get_lnames()) out += " -l " + name;
      if (option->get_items_expected_max() != 0) out += " -r";
      out += " -d " + fish_quoted(option->get_description()) + "\n";
    }
  }
  return out;
}

struct CompletionOptions {
  std::string shell;
  const CLI::App* app = nullptr;
};

int run_completion(const Environment& environment, const CompletionOptions& options) {
  std::vector<Offer> offers;
  collect(*options.app, "kvpack", offers);
  const std::string script = options.shell == "bash"  ? bash_script(offers)
                             : options.shell == "zsh" ? zsh_script(offers)
                                                      : fish_script(offers);
  if (!environment.common->json) {
    print(stdout, script);
    return kExitDone;
  }
  JsonValue result = JsonValue::object();
  result.set("ok", true);
  result.set("kind", "completion");
  result.set("shell", options.shell);
  result.set("script", script);
  return Reporter(*environment.common).success(result, "");
}

}  // namespace

void add_completion(CLI::App& app, const Environment& environment) {
  auto* command =
      app.add_subcommand("completion", "Print what completes this tool's command lines in a shell");
  command->footer("Example:\n  source <(kvpack completion bash)");
  const auto options = std::make_shared<CompletionOptions>();
  options->app = &app;
  command->add_option("SHELL", options->shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  add_common(*command, *environment.common);
  when_chosen(*command, environment, options, run_completion);
}

}  // namespace kvpack::cli
