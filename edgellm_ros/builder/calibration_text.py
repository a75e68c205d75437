"""A text that models are run over to see which of their weights matter: prose, talk, code, figures, other languages."""

from __future__ import annotations

CALIBRATION_TEXT = '''\
Every autumn the ferry between the islands stops for two weeks while its hull is cleaned and painted. During that time
the mail comes by fishing boat, the school on the smaller island closes, and the baker on the larger one bakes only half
as much bread. Nobody complains about it. People repair their roofs, visit relatives whom they have not seen since the
spring, and write long letters. When the ferry comes back, its white sides shining, there is a small party on the pier.

The history of the lighthouse begins in 1847, when a storm drove three ships onto the rocks in a single night. The
harbour council voted for a tower of granite, 31 metres high, with a lamp that burned whale oil. It took six years and
cost almost twice what had been planned. In 1921 the lamp was replaced by an electric one, and since 1988 no keeper has
lived there. The light is now controlled by a computer in the capital; it flashes twice every fifteen seconds and can be
seen from a distance of about forty kilometres when the air is clear.

User: Can you explain why the sky is blue?
Assistant: Sunlight contains all colours. When it passes through the air, the molecules scatter short waves, which we
see as blue, far more strongly than long ones, which we see as red. So blue light reaches our eyes from all directions.
User: And why is it red in the evening?
Assistant: Because the light then travels a much longer way through the air. Most of the blue has been scattered out of
it before it arrives, and mainly orange and red are left.
User: Thank you. Now give me three words that rhyme with "light".
Assistant: Night, bright and flight.

def median(values):
    """Return the middle value of a list, or the mean of the two middle ones."""
    if not values:
        raise ValueError("median of an empty list")
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


for name, scores in {"anna": [3, 9, 4], "ben": [], "carla": [7.5, 1]}.items():
    try:
        print(f"{name}: {median(scores):.2f}")
    except ValueError as error:
        print(f"{name}: {error}")

#include <stdio.h>
int main(void) {
    unsigned long long a = 0, b = 1;
    for (int i = 0; i < 20; i++) {
        printf("%llu\\n", a);
        unsigned long long next = a + b;
        a = b;
        b = next;
    }
    return 0;
}

The recipe is simple. Mix 500 g of flour with 10 g of salt and 7 g of dry yeast, add 330 ml of warm water and two spoons
of olive oil, and knead the dough for ten minutes until it is smooth. Let it rise under a cloth for an hour and a half.
Heat the oven to 250 degrees, roll the dough out thinly, spread tomato sauce on it, then cheese and a few leaves of
basil, and bake it for eight to ten minutes. It should be crisp at the edge and soft in the middle.

A mobile robot estimates where it is from its wheels, its laser scanner and its camera. Each of them is wrong in its own
way: wheels slip, a laser looks through glass, and a camera is blind in the dark. A filter keeps a guess together with a
measure of how sure it is, and every new reading moves the guess a little, the more the surer the reading. If the robot
is lifted up and put down somewhere else, the filter does not know it at once. Good software notices that the readings
no longer fit, stops the motors, and starts to search from the beginning.

Commands: move the red block to the left of the green one; open the gripper; turn around and drive two metres forward;
bring me the screwdriver from the second drawer; if you see a person, wait until the way is free; stop immediately.

{"task": "pick", "object": "cup", "position": [0.412, -0.087, 0.156], "orientation": [0.0, 0.707, 0.0, 0.707],
 "gripper": {"width": 0.08, "force": 12.5}, "speed": 0.25, "retries": 3, "notes": null, "done": false}

| city     | population | area (km2) | founded |
|----------|-----------:|-----------:|--------:|
| Northam  |    184,220 |      97.4  |    1124 |
| Elsbrook |     61,975 |      42.8  |    1390 |
| Port Ime |  1,020,311 |     310.0  |    1702 |

In mathematics, a prime number is a whole number greater than one that has no divisors but one and itself. There are
infinitely many of them: if there were only finitely many, one could multiply them all, add one, and obtain a number
that none of them divides. The first are 2, 3, 5, 7, 11, 13, 17, 19, 23, 29 and 31. If n = p * q with large primes p and
q, it is easy to compute n, and very hard to find p and q again; much of today's encryption rests on that.

Der Zug nach Norden hatte zwanzig Minuten Verspätung, und auf dem Bahnsteig wurde es kalt. Eine Frau mit einem
Cellokasten fragte, ob der Platz auf der Bank noch frei sei. Sie kamen ins Gespräch, erst über das Wetter, dann über
Musik, und als der Zug endlich einfuhr, hatten beide vergessen, wie spät es war.

Le marché ouvre à sept heures. On y trouve des légumes, du fromage, du poisson frais et, le samedi, des fleurs. Les
habitués arrivent tôt, parce qu'à dix heures il ne reste presque plus de fraises. « Combien coûtent les tomates ? »
demande une vieille dame. « Trois euros le kilo, madame, et elles sont du jardin. »

El perro duerme bajo la mesa mientras los niños hacen los deberes. Afuera llueve desde hace tres días y el río ha subido
casi un metro. Mañana, si deja de llover, iremos a ver el puente nuevo que están construyendo cerca del molino.

今天下午三点,我们在图书馆门口见面,然后一起去看展览。门票每人二十元,学生半价。请不要迟到。
明日は雨が降るそうです。傘を持って行ったほうがいいでしょう。駅まで歩いて十五分かかります。
Завтра утром мы поедем за город. Возьми тёплую куртку, потому что около реки будет холодно и ветрено.

Dear Mr. Okafor, thank you for your letter of 14 March. We have checked the pump that you returned and found that a seal
was worn. It has been replaced free of charge, and the pump ran for 48 hours without a fault. You will receive it by
Friday. Please note that the filter should be cleaned every three months; a drawing is enclosed. Yours, L. Marsh

She laughed. "You always say that," she said, "and then you forget your keys." He looked in his pockets, first the left
one, then the right one, then both again. The keys were lying on the piano, where the cat had found them interesting. It
was the third time this week. Outside a bicycle bell rang, a door closed, and somewhere a radio played an old song whose
words neither of them could remember, although they both knew the tune.

Water boils at 100 degrees at sea level, but on a mountain of 3,000 metres it boils at about 90, since the pressure of
the air is lower there. That is why potatoes take longer to cook in the mountains. In a pressure cooker the opposite
happens: the steam cannot escape, the pressure rises, and the water gets hotter than 100 degrees before it boils.

1. Unplug the device. 2. Remove the four screws at the bottom. 3. Lift the cover carefully; the cable to the display is
short. 4. Take out the old battery and put in the new one, with the label facing up. 5. Close the cover and tighten the
screws. 6. Charge the battery fully before you use the device for the first time.
'''
