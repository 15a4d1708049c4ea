# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# bash completion for sluice.  Nouns, verbs and options are what the installed program itself lists.

_sluice_nouns()
{
	"$1" --help 2>/dev/null | sed -n '/(not in this build)/d; s/^  \([a-z][a-z-]*\)  .*/\1/p'
}

# Two columns in, those without a letter six; behind the name come the argument and the text.
_sluice_options()
{
	"$1" "$2" --help 2>/dev/null | sed -En '/^  (    )?-/{ s/^ +//; s/   .*//; p; }' |
		grep -oE -- '--?[a-zA-Z][a-z-]*'
}

# The words that may stand behind OPTION, where the help says a|b|c.
_sluice_values()
{
	case $2,$3 in
	bench,--row) "$1" bench --list 2>/dev/null | sed 's/ .*//' ;;
	*) "$1" "$2" --help 2>/dev/null |
		sed -n "s/^  \(.*, \)\?$3\(, [a-z-]*\)\?[ =]\([a-z]*|[a-z|]*\).*/\3/p" | tr '|' '\n' ;;
	esac
}

# In the usage line verbs are lower case, and what the user has to fill in is upper case.
_sluice_verbs()
{
	"$1" "$2" --help 2>/dev/null | sed -n '1s/^.*\[options\] *//p' | grep -oE '\b[a-z]+\b'
}

# Place of the command in "sluice trace [options] -- COMMAND...", or nothing.
_sluice_command_at()
{
	local i

	for ((i = 2; i < COMP_CWORD; i++)); do
		if [ "${COMP_WORDS[i]}" = -- ]; then
			echo $((i + 1))
			return
		fi
	done
}

_sluice()
{
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}
	local noun=${COMP_WORDS[1]} values at
	local IFS=$'\n' # file names may have spaces

	COMPREPLY=()
	if [ "$COMP_CWORD" -eq 1 ]; then
		COMPREPLY=($(compgen -W "$(_sluice_nouns "$1")"$'\n--help\n--version' -- "$cur"))
		return
	fi
	at=$(_sluice_command_at)
	if [ "$noun" = trace ] && [ -n "$at" ]; then
		if declare -F _command_offset >/dev/null; then
			_command_offset "$at"
		elif [ "$COMP_CWORD" -eq "$at" ]; then
			COMPREPLY=($(compgen -c -- "$cur"))
		else
			COMPREPLY=($(compgen -f -- "$cur"))
		fi
		return
	fi
	case $prev in
	--) ;;
	-*)
		values=$(_sluice_values "$1" "$noun" "$prev")
		if [ -n "$values" ]; then
			COMPREPLY=($(compgen -W "$values" -- "$cur"))
			return
		fi
		;;
	esac
	case $noun,$prev,$cur in
	*,*,-*)
		COMPREPLY=($(compgen -W "$(_sluice_options "$1" "$noun")" -- "$cur"))
		;;
	arena,show,*)
		COMPREPLY=($(compgen -W "$("$1" arena list 2>/dev/null | sed '1d; s/ .*//')" -- "$cur"))
		;;
	*)
		COMPREPLY=($(compgen -W "$(_sluice_verbs "$1" "$noun")" -- "$cur")
			   $(compgen -f -- "$cur"))
		;;
	esac
}

complete -o filenames -F _sluice sluice
