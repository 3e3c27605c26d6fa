"""English function words, which attacks leave as they are."""

from __future__ import annotations

GROUPS = {
    "articles and determiners": "a an the this that these those some any no none every each "
    "either neither both all several few many much more most less least other another such "
    "same own",
    "personal pronouns": "i me my mine myself you your yours yourself yourselves he him his "
    "himself she her hers herself it its itself we us our ours ourselves they them their theirs "
    "themselves one oneself",
    "other pronouns": "who whom whose which what whoever whatever whichever someone somebody "
    "something anyone anybody anything everyone everybody everything nobody nothing",
    "prepositions": "about above across after against along alongside amid among around as at "
    "before behind below beneath beside besides between beyond by despite down during except for "
    "from in inside into near of off on onto out outside over past per since through throughout "
    "till to toward towards under underneath until unto up upon via with within without",
    "conjunctions": "and but or nor so yet because although though while whereas whether if "
    "unless than whenever wherever once lest",
    "auxiliary verbs": "am is are was were be been being do does did done doing have has had "
    "having can could may might must shall should will would ought cannot",
    "shortened forms": "s t d m ll re ve n't isn't aren't wasn't weren't don't doesn't didn't "
    "haven't hasn't hadn't can't couldn't mustn't shan't shouldn't won't wouldn't needn't mightn't "
    "i'm you're he's she's it's we're they're i've you've we've they've i'd you'd he'd she'd we'd "
    "they'd i'll you'll he'll she'll it'll we'll they'll that's there's here's what's who's let's",
    "adverbs of place, time and degree": "not never here there where when why how now then again "
    "also too very just only even ever still already else elsewhere somewhere anywhere everywhere "
    "nowhere thus therefore hence however moreover rather quite almost",
}
STOP_WORDS = frozenset(word for words in GROUPS.values() for word in words.split())
